"""Standard operators without a rule, and why: torch has no such operation, or a traced graph cannot contain it."""


def _for(reason: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


REASONS: dict[str, str] = {
    **_for("it runs a graph of its own, and what it runs may depend on data", "If Loop Scan SequenceMap"),
    **_for("the size of its output depends on data", "NonMaxSuppression"),
    **_for(
        "it draws at random in every call", "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike"
    ),
    **_for(
        "it reads or returns a sequence or an optional value, not a tensor",
        """
        ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt SequenceConstruct SequenceEmpty SequenceErase
        SequenceInsert SequenceLength SplitToSequence
        """,
    ),
    **_for("it reads text", "RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer"),
    **_for("it decodes files of images", "ImageDecoder"),
    **_for("torch has no such operation without torchvision", "MaxRoiPool RoiAlign"),
    **_for("operator sets that have rules have Resize and ScatterElements instead", "Scatter Upsample"),
}
"""Operator → reason."""
