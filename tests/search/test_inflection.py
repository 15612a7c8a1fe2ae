"""Requests and tools in other languages: forms of a word match, and English requests stay English."""

import json
from pathlib import Path

import pytest
from tests.retrieval.loading import rows

from toolcrib.search.engine import search
from toolcrib.search.index import Index
from toolcrib.search.inflection import inflection_stem, request_language, script_stem
from toolcrib.search.text import split_words, stem
from toolcrib.types import SearchReply, SearchRequest, Tool, Visibility

EVERYDAY = Path(__file__).parents[1] / "retrieval" / "everyday" / "queries.jsonl"


def tool(name: str, description: str, visibility: Visibility = Visibility.DISCOVERABLE) -> Tool:
    return Tool(name=name, description=description, visibility=visibility)


ENGLISH = [
    tool("send_mail", "Send a mail to a person."),
    tool("list_tasks", "List the tasks of a project."),
    tool("get_weather", "Get the weather forecast of a city."),
]


def ask(text: str, *tools: Tool) -> SearchReply:
    return search(Index.build([*ENGLISH, *tools]), SearchRequest(queries=(text,)))


def language_of(text: str) -> str:
    return request_language(split_words(text), accented=not text.isascii())


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Welche Dateien liegen in meinem Ordner?", "german"),
        ("Montre-moi les fichiers du dossier", "french"),
        ("¿Qué archivos hay en mi carpeta?", "spanish"),
        ("Mostra os arquivos que estão na minha pasta", "portuguese"),
        ("Elenca tutti i file della cartella", "italian"),
        ("Welke bestanden staan er in mijn map", "dutch"),
        ("Vilka filer finns i min mapp och var ligger de", "swedish"),
        ("Какие файлы лежат в моей папке", "russian"),
        ("Which files are in my folder", ""),
        ("find the film Das Boot", ""),
        ("files", ""),
        ("", ""),
    ],
)
def test_the_language_of_a_request_is_found_by_its_stop_words(text: str, language: str) -> None:
    assert language_of(text) == language


def test_no_english_request_is_taken_for_another_language() -> None:
    asked = [json.loads(line)["query"] for line in EVERYDAY.read_text(encoding="utf-8").split("\n") if line]
    asked += [row["query"] for row in rows("queries")]
    assert len(asked) > 400
    assert [text for text in asked if language_of(text)] == []


def test_forms_of_a_word_have_one_stem() -> None:
    assert len({stem(word) for word in ("календарь", "календаря", "календаре", "календари")}) == 1
    assert len({inflection_stem(word, "german") for word in ("datei", "dateien")}) == 1
    assert script_stem("文件") == "文件"
    assert split_words("Новый ёж, ЛИНЕЙНЫЙ") == ["новый", "еж", "линейный"]


@pytest.mark.parametrize(
    ("text", "name", "description"),
    [
        ("查找文件", "suche", "搜索本地文件"),
        ("ファイルを検索して", "finder", "ローカルのファイルを検索します"),
        ("파일을 찾아줘", "finder", "로컬 파일 찾기"),
        ("удали файлы", "rm", "Удаление файла на диске"),
        ("Zeig mir die Termine", "termin-liste", "Listet einen Termin oder mehrere auf."),
        ("Wann ist mein Treffen im Kalender?", "agenda", "Legt einen Kalendereintrag für ein Treffen an."),
        ("Quels sont mes rappels ?", "alarme", "Crée un rappel pour une heure donnée."),
    ],
)
def test_a_request_finds_the_tool_with_other_forms_of_its_words_in_a_mixed_catalog(
    text: str, name: str, description: str
) -> None:
    assert ask(text, tool(name, description)).hits[0].tool.name == name


def test_stop_words_of_another_language_are_neither_looked_up_nor_unmatched() -> None:
    reply = ask("Zeig mir die Dateien in dem Ordner", tool("ordner", "Zeigt die Dateien, die in dem Ordner liegen."))
    assert reply.unmatched == ()
    assert reply.hits[0].matched == ("Zeig", "Dateien", "Ordner")


def test_a_hidden_tool_in_another_language_changes_nothing() -> None:
    seen = tool("kalender", "Legt einen Kalendereintrag an.")
    hidden = tool("hidden", "Listet alle Termine und Einträge auf.", visibility=Visibility.HIDDEN)
    for text in ("Zeig mir die Termine", "Welche Einträge sind im Kalender?"):
        assert ask(text, seen, hidden) == ask(text, seen)
