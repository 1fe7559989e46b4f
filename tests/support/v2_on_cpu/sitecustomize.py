"""vLLM's V2 model runner in every Python process that has this folder on its path: see
tests/support/v2.py.

vLLM's CPU build has a subclass of the GPU's runner, and refuses it without a Triton
whose backend is named "cpu". PyPI's Triton has no such backend. Its interpreter runs
kernels on a CPU, so a backend of that name is pretended here.
"""

import importlib.abc
import importlib.util
import sys
import types


def _pretend_backend(module):
    driver = type("Driver", (), {"is_active": staticmethod(lambda: True)})
    module.backends["cpu"] = types.SimpleNamespace(driver=driver, compiler=None)


def _top_p_in_torch(module):
    """This kernel alone does not run: under the interpreter, `tl.range` gives plain
    integers. vLLM's own PyTorch version takes its place."""

    def apply_top_k_top_p(logits, k, p, *_args, **_more):
        from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

        return apply_top_k_top_p_pytorch(logits, k, p)

    module.apply_top_k_top_p_triton = apply_top_k_top_p


def _events_are_done(module):
    # a CPU has finished whatever it was given
    module._EventPlaceholder.query = lambda self: True


def _settings(module):
    """Asynchronous scheduling as on a GPU, which vLLM's CPU platform switches off."""
    own = module.EngineArgs.create_engine_config

    def create_engine_config(self, *args, **kwargs):
        config = own(self, *args, **kwargs)
        config.scheduler_config.async_scheduling = True
        return config

    module.EngineArgs.create_engine_config = create_engine_config


_AFTER = {
    "triton.backends": _pretend_backend,
    "vllm.v1.sample.ops.topk_topp_triton": _top_p_in_torch,
    "vllm.v1.worker.cpu.shm": _events_are_done,
    "vllm.engine.arg_utils": _settings,
}


class _After(importlib.abc.MetaPathFinder):
    """Calls a function with a module right after the module's own code has run."""

    def find_spec(self, name, path, target=None):
        change = _AFTER.pop(name, None)
        spec = importlib.util.find_spec(name) if change else None
        if spec is None:
            return None
        executed = spec.loader.exec_module

        def exec_module(module):
            executed(module)
            change(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _After())
