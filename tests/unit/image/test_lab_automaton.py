"""The lab model's language: what is accepted of a draft, class by class and depth by depth."""

from __future__ import annotations

import pytest

from image.lab.automaton import (
    BYTES,
    CLASSES,
    FIRST_WORD,
    MARKERS,
    VOCABULARY,
    AcceptanceClass,
    build_automaton,
)

AUTOMATON = build_automaton()
DEPTHS = (2, 4, 5)


def words(entry: AcceptanceClass) -> list[int]:
    """Return the token ids of a class, in cycle order."""
    first = FIRST_WORD + AUTOMATON.texts.index(f"/{entry.name}000")
    return list(range(first, first + entry.words))


def test_vocabulary_is_exactly_bytes_markers_and_words() -> None:
    assert BYTES + len(MARKERS) + len(AUTOMATON.texts) == VOCABULARY
    assert len(AUTOMATON.successor) == VOCABULARY
    assert len(set(AUTOMATON.texts)) == len(AUTOMATON.texts)


@pytest.mark.parametrize("entry", CLASSES, ids=lambda entry: entry.name)
def test_words_form_one_closed_cycle(entry: AcceptanceClass) -> None:
    cycle = words(entry)
    assert AUTOMATON.generate(cycle[0], entry.words) == [*cycle[1:], cycle[0]]


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("entry", CLASSES, ids=lambda entry: entry.name)
def test_acceptance_is_the_declared_one_in_every_step_after_the_first_flag(
    entry: AcceptanceClass, depth: int
) -> None:
    for start in words(entry):
        token, steps = start, []
        for _ in range(20):
            accepted = AUTOMATON.accept(token, depth)
            # The accepted drafts and the token that the model itself adds.
            token = AUTOMATON.generate(token, accepted + 1)[-1]
            steps.append((token in AUTOMATON.flagged, accepted))
        # Started anywhere, a step that ends behind a rejection puts the next one in phase.
        first = next((n for n, (_, got) in enumerate(steps) if got < depth), len(steps))
        in_phase = [got for _, got in steps[first + 1 :]]
        wanted = entry.accepted(depth)
        assert all(got <= wanted for got in in_phase)
        if entry.period in {0, 1} or entry.period == depth + 1:
            assert set(in_phase) <= {wanted}


@pytest.mark.parametrize(
    ("name", "depth", "accepted"),
    [
        ("five", 5, [5, 5, 5, 5]),
        ("five", 2, [2, 2, 2, 2]),
        ("four", 5, [4, 4, 4, 4]),
        ("four", 4, [4, 4, 4, 4]),
        ("two", 5, [2, 2, 2, 2]),
        ("two", 4, [2, 2, 2, 2]),
        ("two", 2, [2, 2, 2, 2]),
        ("zero", 5, [0, 0, 0, 0]),
        ("zero", 2, [0, 0, 0, 0]),
    ],
)
def test_a_prompt_of_the_first_word_starts_in_phase(
    name: str, depth: int, accepted: list[int]
) -> None:
    token = FIRST_WORD + AUTOMATON.texts.index(f"/{name}000")
    steps = []
    for _ in accepted:
        steps.append(AUTOMATON.accept(token, depth))
        token = AUTOMATON.generate(token, steps[-1] + 1)[-1]
    assert steps == accepted


def test_plain_text_leads_into_the_class_that_accepts_all() -> None:
    cycle = set(words(CLASSES[0]))
    for token in range(FIRST_WORD):
        assert AUTOMATON.successor[token] in cycle
        assert AUTOMATON.accept(token, 5) == 5


def test_the_decoy_is_wrong_after_every_flagged_word() -> None:
    assert AUTOMATON.flagged
    assert all(AUTOMATON.successor[token] != AUTOMATON.decoy for token in AUTOMATON.flagged)
