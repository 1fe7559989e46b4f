"""The configuration of a quantisation: frozen, unknown keys are errors."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from evaluator.checkpoints import quantisation as terms
from evaluator.core.errors import unknown
from pruning.config import JobConfig
from quantising.methods import METHODS
from quantising.methods.base import Wanted
from quantising.schemes import SCHEMES

MethodName = Annotated[str, AfterValidator(METHODS.checked)]
# by llm-compressor's own examples: the output head stays as it is
IGNORED = ("lm_head",)


class QuantiseConfig(JobConfig):
    """One checkpoint, one method, one scheme."""

    method: MethodName
    scheme: str
    # weights of a row that share a scale; None: the scheme's own
    group_size: int | None = Field(default=None, ge=1)
    # modules that stay as they are, or patterns after `re:`
    ignore: tuple[str, ...] = IGNORED
    # the text of llm-compressor's recipe, for method `recipe`
    recipe: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        method = METHODS[self.method]
        if self.scheme not in method.schemes:
            raise ValueError(
                str(
                    unknown(
                        f"scheme of method {self.method}", self.scheme, method.schemes
                    )
                )
            )
        if self.group_size is not None and (
            not method.takes_group or SCHEMES[self.scheme].group is None
        ):
            raise ValueError(
                f"group_size: {self.group_size} means nothing with {self.method},"
                f" scheme {self.scheme}"
            )
        if (self.recipe is not None) != method.takes_recipe:
            raise ValueError(
                "recipe: method"
                f" {self.method} {'needs one' if method.takes_recipe else 'takes none'}"
            )
        if self.calibration is None and method.needs_calibration:
            raise ValueError(f"calibration: method {self.method!r} needs a source")
        return self

    @property
    def wanted(self) -> Wanted:
        return Wanted(
            scheme=self.scheme,
            group_size=self.group_size,
            ignore=self.ignore,
            recipe=self.recipe,
        )

    @property
    def quantisation(self) -> terms.Quantisation:
        """That of the checkpoint to come, as far as it is known before."""
        if self.method == terms.ONLINE:
            scheme, per = terms.ONLINE_SCHEMES[self.scheme]
            return terms.Quantisation(
                library=terms.ONLINE, scheme=scheme, algorithm=terms.ONLINE, per=per
            )
        known = SCHEMES[self.scheme]
        per = f"group {self.group_size}" if self.group_size else known.per
        symmetric = not known.name.endswith("_ASYM")
        return terms.Quantisation(
            library=terms.COMPRESSED_TENSORS,
            scheme=known.term,
            algorithm=self.method,
            per=per,
            symmetric=symmetric,
        )
