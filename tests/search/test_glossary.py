"""Words of other languages: what they are in English, and that tools and requests in different languages meet."""

import tracemalloc
from importlib.resources import files

import pytest
from tests.retrieval.loading import tools

from toolcrib.search.engine import search
from toolcrib.search.glossary import english_words, words_within
from toolcrib.search.index import Index
from toolcrib.search.inflection import inflection_stem
from toolcrib.search.text import split_words
from toolcrib.search.vectors import default_table
from toolcrib.types import Hit, SearchRequest, Tool, Visibility

TOOLS = (
    Tool(name="delete_event", description="Deletes a meeting from the calendar."),
    Tool(name="list_folders", description="Lists the folders of a drive."),
    Tool(name="get_weather", description="Returns the forecast for a city."),
    Tool(name="rotate_image", description="Rotates a picture by an angle."),
)


def found(text: str, *some: Tool) -> tuple[Hit, ...]:
    return search(Index.build(some or TOOLS), SearchRequest(queries=(text,))).hits


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Lösche die Besprechung am Montag", "delete_event"),
        ("quel temps fera-t-il demain en ville", "get_weather"),
        ("muéstrame mis carpetas", "list_folders"),
        ("girar a imagem", "rotate_image"),
        ("удали встречу", "delete_event"),
        ("天气预报", "get_weather"),
        ("画像を回転して", "rotate_image"),
        ("폴더 목록을 보여줘", "list_folders"),
    ],
)
def test_a_request_in_another_language_finds_the_tool_that_is_described_in_english(text: str, name: str) -> None:
    assert [hit.tool.name for hit in found(text)[:1]] == [name]


def test_an_english_request_finds_a_tool_that_is_described_in_another_language() -> None:
    german = Tool(name="termin_loeschen", description="Entfernt eine Besprechung aus dem Kalender.")
    other = Tool(name="wetter", description="Liefert die Vorhersage für eine Stadt.")
    assert found("delete the meeting", other, german)[0].tool is german


def test_two_words_of_one_language_for_the_same_thing_meet() -> None:
    one = Tool(name="uno", description="Cierra la sesión de una persona.")
    other = Tool(name="dos", description="Descarga el archivo adjunto de un correo.")
    assert found("baja el fichero", one, other)[0].tool is other


def test_a_reason_names_the_word_as_typed_and_the_word_of_the_tool() -> None:
    reasons = found("удали встречу")[0].reasons
    assert ("встречу", "synonym") in {(reason.word, reason.how) for reason in reasons}


def test_a_hidden_tool_in_another_language_changes_nothing() -> None:
    hidden = Tool(name="x", description="Löscht Besprechungen und Ordner.", visibility=Visibility.HIDDEN)
    with_it, without = found("delete the folder", *TOOLS, hidden), found("delete the folder")
    assert [(hit.tool, hit.raw, hit.score) for hit in with_it] == [(hit.tool, hit.raw, hit.score) for hit in without]


@pytest.mark.parametrize(
    ("word", "english"),
    [
        ("ordnern", ("folder",)),
        ("terminkalender", ("calendar",)),
        ("bilddateien", ("file", "image")),
        ("carpetas", ("folder",)),
        ("escribelos", ("write",)),
        ("папках", ("folder",)),
        ("フォルダー", ("folder",)),
        ("folders", ()),
        ("xyzzy", ()),
        ("", ()),
    ],
)
def test_forms_of_a_word_compounds_and_verbs_with_pronouns_are_read(word: str, english: tuple[str, ...]) -> None:
    assert english_words(word) == english


def test_words_are_found_in_text_without_spaces_the_longest_first() -> None:
    assert [*words_within("打开文件夹和文件")] == ["打开", "文件夹", "文件"]
    assert [*words_within("open the folder")] == []


def test_words_of_english_tools_are_not_taken_for_words_of_other_languages() -> None:
    table = default_table()
    words = {word for tool in tools() for word in split_words(f"{tool.name} {tool.description}") if word.isascii()}
    assert {word for word in words if table.translation(word)} <= {"meteo"}


def test_the_table_knows_every_english_word_of_the_glossary() -> None:
    lines = (files("toolcrib.search") / "data" / "glossary.txt").read_text(encoding="utf-8").splitlines()
    heads = [line.partition(":")[0] for line in lines]
    assert heads == sorted(set(heads))
    assert [word for word in heads if not default_table().word_vectors([word]).any()] == []
    assert [line for line in lines if line.count("|") != 7] == []


def test_a_word_of_any_length_is_looked_up_without_taking_it_apart() -> None:
    tracemalloc.start()
    try:
        assert english_words("server" * 5_000) == ()
        assert found("find" * 20_000, Tool(name="a", description="find" * 20_000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50_000_000


def test_a_stem_begins_like_its_word_which_rules_out_most_languages_at_once() -> None:
    endings = ("", "e", "en", "s", "es", "os", "mente", "ung", "ungen", "ieren", "ando", "ito", "eurs", "ais")
    words = [
        word for words in ("datei konto", "fichier hier", "archivo enviar", "arquivo conta") for word in words.split()
    ]
    for word in [word + ending for word in words for ending in endings]:
        for language in ("german", "french", "spanish", "portuguese"):
            assert word.startswith(inflection_stem(word, language)[:3]), (word, language)
