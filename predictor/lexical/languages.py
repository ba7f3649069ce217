"""What the main languages call the things that tell an answer's length, so that they read like English.

Almost all prompts with known answer lengths are English. A word listed here is read as its English
counterpart, after which classes, requested lengths and learnt weights hold for it too. Only words that
English itself does not use are listed. Chinese and Japanese are written without blanks, so their terms are
looked for anywhere, the longest first.
"""

import re
from functools import cache

_WORDS = {
    # German, French, Spanish, Portuguese, Italian, Russian, Arabic
    "write": (
        "schreibe schreib schreiben verfasse verfassen écris écrivez écrire rédige rédigez rédiger escribe "
        "escriba escribir redacta redacte escreva escrever redija scrivi scrivere напиши напишите написать "
        "составь составьте اكتب اكتبي كتابة"
    ),
    "create": (
        "erstelle erstellen entwickle entwirf entwerfen crée créer créez développe crea crear desarrolla "
        "genera crie criar desenvolva sviluppa создай создайте разработай разработайте أنشئ صمم"
    ),
    "explain": (
        "erkläre erklär erklären erläutere explique expliquez expliquer explica explicar explicame explícame "
        "spiega spiegami объясни объясните اشرح وضح"
    ),
    "describe": "beschreibe beschreiben décris décrivez decris descreva descrivi опиши опишите صف",
    "translate": (
        "übersetze übersetzen traduis traduisez traduire traduce traducir traduz traduza traduci переведи "
        "переведите ترجم"
    ),
    "summarize": (
        "fasse zusammenfassen zusammenfassung résume résumez résumer resuma resumir riassumi riassunto "
        "перескажи резюмируй обобщи لخص ملخص"
    ),
    "correct": "korrigiere corrige corrigez corrigir correggi исправь исправьте صحح",
    "list": "liste auflisten listez lista enumera elenca перечисли перечислите список قائمة اذكر",
    "compare": "vergleiche comparez compara сравни сравните قارن",
    "detailed": (
        "ausführlich ausführlichen ausführliche ausführlicher ausführliches detailliert detaillierte "
        "detaillierten detaillierter détaillé détaillée détaillés détail detallada detallado detalladamente "
        "detalle detalhado detalhada detalhadamente dettagliato dettagliata подробный подробное подробную "
        "подробно подробным детально مفصل مفصلا مفصلة بالتفصيل تفصيلي"
    ),
    "complete": (
        "vollständig vollständige vollständigen vollständiger komplette kompletten complète completo "
        "completa полный полное полную полностью شاملا شامل كامل كاملة"
    ),
    "long": "lange langen longue largo larga longo longa lungo lunga длинный длинное длинную طويل طويلة",
    "brief": (
        "kurz kurze kurzen kurzer knapp brève bref brièvement breve brevemente corto corta curto curta "
        "кратко коротко краткий краткое باختصار قصير قصيرة"
    ),
    "only": "nur seulement solamente únicamente somente apenas soltanto только فقط",
    "essay": "aufsatz ensayo redacción redação ensaio saggio сочинение эссе реферат مقال مقالا مقالة",
    "article": "artikel artículo artigo articolo статью статья статьи",
    "story": (
        "geschichte erzählung histoire récit cuento historia relato conto racconto рассказ сказку сказка "
        "историю قصة"
    ),
    "poem": "gedicht poème poema poesia стихотворение стих قصيدة",
    "plan": "geschäftsplan reiseplan план خطة",
    "guide": "leitfaden anleitung guía guia guida руководство инструкцию دليل دليلا",
    "report": "bericht informe relatório relazione отчёт отчет доклад تقرير",
    "program": "programm programa программу программа برنامج",
    "words": "wörter wörtern worten palabras mots palavras слов слова كلمة كلمات",
    "word": "wort palabra palavra parola слово слове",
    "sentence": "satz frase предложение предложении предложением جملة",
    "sentences": "sätze sätzen frases frasi предложения предложениях предложений جمل",
    "paragraphs": (
        "absätze absätzen abschnitte paragraphes párrafos parágrafos paragrafi абзаца абзацев абзацах فقرات"
    ),
    "pages": "seiten páginas pagine страниц страницы страницах صفحات صفحة",
    "lines": "zeilen lignes líneas linhas righe строк строки أسطر",
    "chapters": "kapitel kapiteln chapitres capítulos capitoli глав главы главах فصول",
    "days": "tage tagen jours días dias giorni дней дня يوما أيام",
    "ideas": "ideen idées idee идей идеи فكرة أفكار",
    "examples": "beispiele beispielen exemples ejemplos exemplos esempi примеров примера أمثلة",
    "tips": "tipps conseils consejos dicas consigli советов نصائح",
    "who": "wer quién quiénes quem кто",
    "what": (
        "quel quelle quels quelles qué cuál cuáles qual quais cosa quale что какая какой какие какое ما ماذا"
    ),
    "when": "wann quand cuándo quando когда متى",
    "where": "où dónde onde где أين",
    "why": "warum wieso pourquoi perché почему зачем لماذا",
    "how": "wie cómo como как كيف",
    "many": "viele combien cuántos cuántas cuánto quantos quantas quanti quante сколько كم",
    "capital": "hauptstadt capitale столица عاصمة",
    "is": "ist sind est sont está están é são è sono هو هي هل",
    "two": "zwei deux dos dois duas два две двух جملتين",
    "one": "einem einer einen einzigen une una uma один одном одним одно واحدة واحد",
    "three": "drei trois tres três tre три трёх ثلاث ثلاثة",
    "five": "fünf cinq cinco cinque пять خمس خمسة",
    "ten": "zehn dix diez dez dieci десять عشر عشرة",
    "each": "jede jeden jedem jeweils chaque cada ogni каждый каждого каждую كل",
    "please": "bitte veuillez пожалуйста فضلك",
    "thanks": "danke merci gracias obrigado obrigada grazie спасибо شكرا",
    "hello": "hallo bonjour salut hola olá ciao привет здравствуйте مرحبا",
    "advantages": "vorteile avantages ventajas vantagens vantaggi преимущества مزايا",
    "yes": "oui sì да نعم",
    "answer": "antworte antwort réponds répondez réponse responde responda rispondi ответь ответьте أجب",
}

_TERMS = {
    "write detailed": "详细写 詳しく書いて",
    "detailed": "详细 詳細 详尽 详述 详解 詳しく 자세히 상세히",
    "complete": "完整 全面 完全な すべて",
    "long": "尽可能长 できるだけ長く 长篇 長編 長い",
    "write": "写一篇 写一份 写一个 撰写 写出 书写 请写 写 書いて 書け 執筆 작성 써줘",
    "create": "创建 制作 设计 生成 作成 作って 만들어",
    "explain": "解释 说明 讲解 介绍 説明して 説明 解説 설명",
    "describe": "描述 描写 述べて",
    "discuss": "论述 讨论 分析",
    "translate": "翻译 翻譯 訳して 翻訳 번역",
    "summarize": "总结 概括 摘要 要約 まとめて 요약",
    "correct": "修改 纠正 改正 校对 添削",
    "list": "列出 列举 挙げて リスト 목록",
    "brief": "简短 简要 简单 简洁 短く 簡潔 簡単に 간단히",
    "only": "只回答 仅 只需 だけ",
    "essay": "论文 作文 文章 散文 エッセイ 論文 小論文 에세이",
    "story": "故事 小说 物語 小説 이야기",
    "poem": "一首诗 诗歌 俳句 詩",
    "plan": "计划书 计划 方案 计划表 攻略 計画",
    "guide": "指南 教程 入門ガイド ガイド 手引き",
    "report": "报告 報告書 レポート 보고서",
    "program": "程序 代码 プログラム コード 코드",
    "one sentence": "一句话 一句 一文で 一言で",
    "two sentences": "两句话 两句 二文で",
    "three sentences": "三句话 三句 三文で",
    "one word": "一个词 一词 一語で",
    "glyphs": "个字 字以内 字以上 文字 字",
    "paragraphs": "段落 自然段",
    "pages": "页 ページ",
    "chapters": "章节 章ごと 各章",
    "examples": "个例子 例を",
    "ideas": "个想法 个点子 个主意 アイデア",
    "tips": "个建议 条建议",
    "what": "什么 哪个 哪些 哪 何ですか 何 무엇",
    "who": "谁 誰 누구",
    "where": "哪里 哪儿 どこ 어디",
    "when": "什么时候 何时 いつ 언제",
    "why": "为什么 为何 なぜ どうして 왜",
    "how": "如何 怎么 怎样 どうやって どのように 어떻게",
    "how many": "多少 几个 いくつ 몇",
    "capital": "首都 수도",
    "is": "是 ですか です",
    "please": "请 ください",
    "thanks": "谢谢 ありがとう 감사",
    "hello": "你好 こんにちは 안녕",
    "yes or no": "是或否 是还是否 はいかいいえ",
    "and": "以及 そして",
}

ENGLISH: dict[bytes, bytes] = {
    word.encode(): english.encode() for english, words in _WORDS.items() for word in words.split()
}
"""Words of languages that part words by blanks, in UTF-8, by their English counterparts."""

FOREIGN = ENGLISH.keys()

_UNSPACED = {term: f" {english} " for english, terms in _TERMS.items() for term in terms.split()}
_ANY_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_TWO_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u9fff]{2}")
_MARKS = str.maketrans(
    "，。；：？！、（）「」『』“”‘’«»¿¡—–…،؛؟٠١٢٣٤٥٦٧٨٩０１２３４５６７８９",
    ',.;:?!,()""""""\'\'""  --.,;?01234567890123456789',
)


@cache
def _any_term() -> re.Pattern[str]:
    """Return the pattern of all terms, made at first use: it takes milliseconds to make."""
    return re.compile("|".join(sorted(map(re.escape, _UNSPACED), key=len, reverse=True)))


def plain(text: str) -> str:
    """Return a lower-case text that is not all ASCII with its marks and terms as English has them.

    Chinese and Japanese characters are parted two by two, which makes words about as long as English ones.
    """
    text = text.translate(_MARKS)
    if not _ANY_UNSPACED.search(text):
        return text
    text = _any_term().sub(lambda found: _UNSPACED[found[0]], text)
    return _TWO_UNSPACED.sub(r"\g<0> ", text)
