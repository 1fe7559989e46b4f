"""The questions of the logs in this folder, and a model that answers them from a script.

Question 7 occurs three times. `candidate` loses two answers of `base` and gains one."""

SUMS = [(7 * i % 10 + 1, 3 * i % 8 + 1) for i in range(12)]
SUMS[9] = SUMS[10] = SUMS[7]
WRONG = {"base": {1, 5}, "candidate": {1, 3, 8}}


def question(number: int) -> str:
    a, b = SUMS[number]
    return f"What is {a} plus {b}?"


def gold(number: int) -> str:
    return str(sum(SUMS[number]))


def options(number: int) -> list[str]:
    right = sum(SUMS[number])
    shifted = [str(right + step) for step in (0, 1, 2, 3)]
    return shifted[number % 4 :] + shifted[: number % 4]


def answer(model: str, text: str) -> str:
    """The scripted answer to a prompt that contains one of the questions."""
    number = next(i for i in range(len(SUMS)) if question(i) in text)
    right = sum(SUMS[number])
    return str(right + 1 if number in WRONG[model] else right)
