"""The configuration of a quantisation: frozen, unknown keys are errors."""

from typing import Annotated, Self

from pydantic import AfterValidator, model_validator

from evaluator.checkpoints import quantisation as terms
from evaluator.core.errors import unknown
from quantising.methods import METHODS
from quantising.methods.base import IGNORED, Settings
from quantising.schemes import SCHEMES

MethodName = Annotated[str, AfterValidator(METHODS.checked)]


class QuantiseConfig(Settings):
    """One checkpoint, one method, one scheme."""

    method: MethodName

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        method = METHODS[self.method]
        if (self.experts is not None) != method.takes_experts:
            rule = "needs a share, as 0.25" if method.takes_experts else "removes none"
            raise ValueError(f"experts: method {self.method} {rule}")
        if self.experts is not None:
            self._check_experts(self.experts)
        elif self.scheme not in method.schemes:
            what = f"scheme of method {self.method}"
            raise ValueError(str(unknown(what, self.scheme, method.schemes)))
        if self.group_size is not None and (
            not method.takes_group or SCHEMES[self.scheme].group is None
        ):
            raise ValueError(
                f"group_size: {self.group_size} means nothing with {self.method},"
                f" scheme {self.scheme}"
            )
        if (self.recipe is not None) != method.takes_recipe:
            rule = "needs one" if method.takes_recipe else "takes none"
            raise ValueError(f"recipe: method {self.method} {rule}")
        if self.calibration is None and method.needs_calibration:
            raise ValueError(f"calibration: method {self.method!r} needs a source")
        return self

    def _check_experts(self, share: float) -> None:
        if not 0 < share < 1:
            raise ValueError(f"experts: {share} is not a share between 0 and 1")
        for name, usual in (("scheme", ""), ("ignore", IGNORED)):
            if (value := getattr(self, name)) != usual:
                raise ValueError(f"{name}: {value!r} means nothing with {self.method}")

    @property
    def quantisation(self) -> terms.Quantisation | None:
        """That of the checkpoint to come, as far as it is known before; None: it
        quantises nothing."""
        if self.experts is not None:
            return None
        if self.method == terms.ONLINE:
            scheme, per = terms.ONLINE_SCHEMES[self.scheme]
            return terms.Quantisation(
                library=terms.ONLINE, scheme=scheme, algorithm=terms.ONLINE, per=per
            )
        known = SCHEMES[self.scheme]
        return terms.Quantisation(
            library=terms.COMPRESSED_TENSORS,
            scheme=known.term,
            algorithm=self.method,
            per=f"group {self.group_size}" if self.group_size else known.per,
            symmetric=not self.scheme.endswith("_ASYM"),
        )
