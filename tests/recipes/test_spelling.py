"""One slip: against the distance written out, and the names that a correction never chooses."""

from itertools import product

from winhost.recipes.spelling import find_correction, is_one_edit, suggest


def distance(a: str, b: str) -> int:
    """Damerau-Levenshtein (neighbours swapped once), by its recurrence."""
    table = [[max(i, j) if not (i and j) else 0 for j in range(len(b) + 1)] for i in range(len(a) + 1)]
    for i, j in product(range(1, len(a) + 1), range(1, len(b) + 1)):
        ways = [table[i - 1][j] + 1, table[i][j - 1] + 1, table[i - 1][j - 1] + (a[i - 1] != b[j - 1])]
        if i > 1 and j > 1 and (a[i - 1], a[i - 2]) == (b[j - 2], b[j - 1]):
            ways.append(table[i - 2][j - 2] + 1)
        table[i][j] = min(ways)
    return table[-1][-1]


def test_a_slip_is_distance_one() -> None:
    words = ["".join(letters) for length in range(5) for letters in product("ab", repeat=length)]
    words += ["".join(letters) for letters in product("abc", repeat=3)]
    assert [(a, b) for a, b in product(words, words) if is_one_edit(a, b) != (distance(a, b) == 1)] == []


def test_only_one_near_name_is_meant_and_never_development_mode() -> None:
    assert find_correction("NCCL_DEBUGG", ["NCCL_DEBUG", "NCCL_NET"]) == "NCCL_DEBUG"
    assert find_correction("--a-bat", ["--a-cat", "--a-bar"]) is None
    assert find_correction("VLLM_SERVER_DEV_MOD", ["VLLM_SERVER_DEV_MODE"]) is None
    assert suggest("VLLM_SERVER_DEV_MOD", ["VLLM_SERVER_DEV_MODE"]) == "."
    assert suggest("VLLM_SERVED_MODEL_NAME", ["VLLM_SERVER_DEV_MODE", "VLLM_PP_LAYER_PARTITION"]) == "."
