"""A second grader: a model that judges answers (`matcher`), and pairs with known
verdicts that test it (`controls`)."""
