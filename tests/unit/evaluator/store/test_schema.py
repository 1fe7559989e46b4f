"""The columns are written once; what is derived from them is what runs were written with."""

from pathlib import Path

import pyarrow as pa

from evaluator.store import schema

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "records.md"


def test_the_document_is_the_one_that_the_schema_prints():
    assert DOCUMENT.read_text(encoding="utf-8") == schema.document(), "run what its second paragraph says"


def test_records_are_stored_as_the_contract_says():
    """By hand: a run that is there already must be readable, so names, order and types stay."""
    text, count, number, flag = pa.string(), pa.int32(), pa.float64(), pa.bool_()
    floats, flags = pa.list_(pa.float32()), pa.list_(pa.bool_())
    stored = [
        ("checkpoint weights_digest base method pattern", text), ("sparsity", number), ("calibration", text),
        ("requested_sparsity", number), ("task language item_id format probe", text), ("index", count),
        ("seed", pa.int64()), ("status text", text), ("token_ids", pa.list_(count)), ("logprob", number),
        ("rank", count), ("margin", number), ("is_gold", flag), ("option_text", text), ("contains exact_match", flag),
        ("token_f1", number), ("prompt_tokens", count), ("truncated", flag), ("cached_tokens", count),
        ("engine engine_version dtype device", text), ("kld kld_reverse acceptance", floats), ("same_top", flags),
        ("top_agreement token_logprobs base_token_logprobs base_confidence", floats),
    ]  # fmt: skip
    assert schema.RECORDS.equals(pa.schema([(name, kind) for names, kind in stored for name in names.split()]))
    key = ["checkpoint", "weights_digest", "task", "language", "item_id", "format", "probe", "index", "seed"]
    assert schema.VERDICTS.names == [*key, "matcher", "matcher_digest", "verdict", "probability", "status"]
