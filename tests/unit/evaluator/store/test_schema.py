"""The columns are written once; what is derived from them is what runs were written with."""

from pathlib import Path

import pyarrow as pa

from evaluator.store import schema

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "records.md"


def test_the_document_is_the_one_that_the_schema_prints():
    assert DOCUMENT.read_text(encoding="utf-8") == schema.document(), "run what its second paragraph says"


def test_records_are_stored_as_the_contract_says():
    """By hand: a run that is there already must be readable, so names, order and types stay."""
    text, count = pa.string(), pa.int32()
    assert schema.RECORDS.equals(
        pa.schema(
            [
                *((name, text) for name in ("checkpoint", "weights_digest", "base", "method", "pattern")),
                ("sparsity", pa.float64()),
                ("calibration", text),
                ("requested_sparsity", pa.float64()),
                *((name, text) for name in ("task", "language", "item_id", "format", "probe")),
                ("index", count),
                ("seed", pa.int64()),
                ("status", text),
                ("text", text),
                ("token_ids", pa.list_(count)),
                ("logprob", pa.float64()),
                ("rank", count),
                ("margin", pa.float64()),
                ("is_gold", pa.bool_()),
                ("option_text", text),
                ("contains", pa.bool_()),
                ("exact_match", pa.bool_()),
                ("token_f1", pa.float64()),
                ("prompt_tokens", count),
                ("truncated", pa.bool_()),
                ("cached_tokens", count),
                *((name, text) for name in ("engine", "engine_version", "dtype", "device")),
                *((name, pa.list_(pa.float32())) for name in ("kld", "kld_reverse", "acceptance")),
                ("same_top", pa.list_(pa.bool_())),
                ("top_agreement", pa.list_(pa.float32())),
                *((name, pa.list_(pa.float32())) for name in ("token_logprobs", "base_token_logprobs")),
                ("base_confidence", pa.list_(pa.float32())),
            ]
        )
    )
    key = ["checkpoint", "weights_digest", "task", "language", "item_id", "format", "probe", "index", "seed"]
    assert schema.VERDICTS.names == [*key, "matcher", "matcher_digest", "verdict", "probability", "status"]
