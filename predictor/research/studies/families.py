"""Which files draw on the same prompts, and what kind of traffic each of them is.

A family is held out whole: a translation or a remix of a prompt, seen in training, is no traffic unseen.
"""

_FAMILIES = {
    "arena_hard": "arena",
    "m_arena_hard": "arena",
    "ko_arena_hard": "arena",
    "hellobench": "hellobench",
    "reference_oasst1": "oasst",
    "oasst": "oasst",
    "mt_bench": "mt_bench",
    "eq_bench": "eq_bench",
    "m_ifeval": "m_ifeval",
    "gpteacher": "gpteacher",
    "cot_": "cot",
    "glaive": "glaive",
    "vicuna": "vicuna",
    "halueval": "halueval",
}
"""By the beginning of a file's name; any other file is a family of its own."""

_KINDS = {
    "code": "livecodebench humaneval_chat codealpaca realhumaneval gpteacher_codegen",
    "reasoning": "cot_ eq_bench livecodebench",
    "extraction": "cello complexbench news_summaries hellobench_summarization t0_p3",
    "role-play": "gpteacher_roleplay persona_chat eqbench_creative",
    "multilingual": (
        "m_arena ko_arena arena_hard_el mt_bench_de mt_bench_fr mt_bench_ru mt_bench_zh mt_bench_ja shaberi "
        "m_ifeval complexbench cello logickor pfmt vicuna_bench_ja oasst_val_multilingual sharegpt_zh dpo_zh"
    ),
    "multi-turn": (
        "mt_bench_turn2 mt_bench_de_turn2 mt_bench_fr_turn2 mt_bench_ru_turn2 mt_bench_zh_turn2 "
        "mt_bench_ja_turn2 kto_en realhumaneval"
    ),
    "chat": (
        "alpaca_eval arena_hard_v01 just_eval flask ultrafeedback evol_instruct instructionwild "
        "reference_oasst1 oasst1 kto_en mt_bench_turn1 lf_dpo"
    ),
}


def family(name: str) -> str:
    """Return the distribution a file belongs to."""
    return next((known for prefix, known in _FAMILIES.items() if name.startswith(prefix)), name)


def kinds(name: str) -> list[str]:
    """Return the kinds of traffic that a file is, in the order of their names' list; none for an unknown."""
    return [kind for kind, prefixes in _KINDS.items() if name.startswith(tuple(prefixes.split()))]
