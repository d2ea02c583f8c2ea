"""Check README, docs, messages and docstrings against docs/style.md.

python -m docs.building.prose             # every page, every message, every docstring
python -m docs.building.prose PAGE ...    # some pages, each finding with its line

A page is split into sentences: code, links' targets and markup are removed, and each cell of a table and each item
of a list is read for itself. `RULES` holds the banned wordings as patterns of English, with the replacement that the
style guide gives. Findings fail a page. Advice does not: several passives in one sentence, abbreviations that neither
the page nor the glossary explains.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from docs.building.message_codes import CODE, PACKAGES, ROOT, find_messages

LONGEST = 35
"""Words of a sentence that still passes; the guide asks for 25."""
GLOSSARY = ROOT / "docs/concepts.md"
SHORTEST = 4
"""Words from which a piece of text counts as a sentence in the figures."""

_QUESTION = r"(?![^.!]*\?)"
"""Not in a question: `What is compared?` is plain English, `What is compared is equal` is not."""
_ALLOWED_WHAT = r"(?! (to|you|happens|happened|changed|else)\b)"
RULES: dict[str, str] = {
    rf"\bwhat\b{_ALLOWED_WHAT}{_QUESTION}": "name the thing: 'the settings', 'the files', 'the memory that'",
    rf"(?:^|[,;:(] )(?:who|whose|whom)\b{_QUESTION}": "name the person or process",
    r"\bwhoever\b|\bnobody\b|\bsomebody\b|\bno one\b|\bone's\b": "name the person, the program or the run",
    r"\btold\b|\btells?\b(?! you\b)|\btelling\b": "shows, prints, names, sets",
    r"\bsaid\b|\bsays?\b|\bsaying\b": "shows, prints, names, reports",
    rf"(?:^|[:;] )where\b(?! to\b){_QUESTION}": "if, when",
    r"^(?:of|from|to) (?:the same|each|all|every|these|those|one|it|a|an|the)\b": "start with the subject",
    r"\b(?:is|are|was|were|be|been|has|have|had|does|do|did) none\b": "use 'not'",
    r"(?<!there )\b(?:is|are|was|were) no (?!longer|more|effect|gpu|network|cluster)": "not, without",
    r"\b(?:by|of|at|into|inside|under|for|from|to) no\b(?! longer\b)": "negate the verb",
    r"\bnothing\b(?: else| of \w+)? (?:that|which|can|is|was|of|does|else)\b|^nothing:": "negate the verb",
    r"\bbesides?\b": "next to, in addition, compared with",
    r"\bbehind\b(?! (?:a|the) (?:proxy|firewall|load balancer))": "after, next",
    r"(?<!stand-)(?<!let )\balone\b": "only, on its own",
    r"\bmend(?:s|ed|ing)?\b|\bcures?\b|\bremed(?:y|ies)\b": "fix",
    r"\bforesee\w*\b|\bforesaw\b": "expect, support",
    r"\bto be had\b": "is available",
    r"\b(?:lie|lies|lay|lying)\b": "is, is stored, is in",
    r"\b(?:stands?|stood|standing)\b(?! for\b)(?!-)": "is, is written in, stays",
    r"\b(?:goes|go|went|going) on\b": "continues, resumes",
    r"\b(?:took|takes?|taking|taken) (?:part|back|away)\b": "participates, overrides, removes",
    r"\b(?:is|are|was|were) away\b|\bcosts? (?:a|one|no|nothing)\b": "is unreachable; needs, prints",
    r"\b(?:that|those) of\b": "repeat the noun",
    r"\bso (?:many|much) (?!that|as|faster|slower|more|less)\w": "give the number, or 'this many'",
    r"\b(?:as|than) (?:it|they) (?:is|are|stand|stands|was|were)\b": "unchanged",
    r"\bof (?:whose|whom)\b|\bthat there (?:is|are|was)\b": "start a new sentence",
    r"\b(?:came|comes|come) (?:no|to be|of it)\b|\bnot one\b|\bnot even one\b": "negate the verb",
    r"\ball the same\b|\bwherever\b|\bthereof\b|\bwhereof\b|\bthereby\b|\blikewise\b": "drop it, or 'still', 'also'",
    r"\b(?:is|are|be|was|were) (?:given|put|asked|held|brought|made) (?:for|on|by|here|of|to)\b": "active voice",
    r"\bby (?:itself|themselves|oneself)\b": "on its own, automatically",
    r"\bone another\b|\bthe one (?:that|of)\b|\bsuch (?:a )?one\b": "repeat the noun",
    r"\bnone of (?:this|it|that|them)\b|\bnot but\b|\bnothing but\b|\bbut for\b|\bsave for\b": "use 'only', 'except'",
    rf", where (?:it|there|they|one|no|nothing)\b{_QUESTION}": "if, when; or start a new sentence",
    rf"\b(?:also|even|only|except|but|as|than|from|of) where\b(?! to\b){_QUESTION}": "if, when, in which",
    r"\b(?:as|than) (?:it|they) (?:comes?|goes|go|has|have|does|do|came)\b": "unchanged, by default",
    r"\bas (?:told|asked|wanted|given|shipped|such)\b": "as configured, by default",
    r"\b(?:is|are) (?:how|where|why)\b": "start with the actor: 'a laptop reads the volume through ...'",
    r"\b(?:is|are|was|were) there\b(?! (?:a|an|any|more)\b)|\bthere (?:it|they) (?:is|are)\b": "exists, is installed",
    r"\b(?:on|of|by|with|for|from|in|as|at|before|until) nothing\b": "negate the verb",
    r"\b(?:is|are|was|were) (?:neither|nothing)\b": "negate the verb",
    r"\b(?:makes?|sends?|holds?|costs?|finds?|loses?|reads?|writes?|asks?|takes?|gets?|gives?|sees?|keeps?|starts?|"
    r"waits?|knows?|reaches) (?:no(?! longer)|nothing|none)\b": "negate the verb: 'does not send'",
    r"\bno \w+ (?:of \w+ )?(?:has|does|comes?|goes|takes|gives|knows)\b|\bno \w+ is (?:put|let|held)\b": (
        "negate the verb"
    ),
    r"\b(?:means?|mean) (?:something|anything|nothing)\b": "is valid, has an effect, cannot be interpreted",
    r"\b(?:is|are|was|were|be|been) (?:looked|talked|spoken|believed|waited|let|meant|asked)\b(?! up)": "the actor",
    r"\bask(?:s|ed)? (?:for|of|about)\b|\bcan be (?:asked|said|had|told|known)\b": "requests, requires, sets",
    r"\b(?:that|this) one\b(?! (?:\w+ (?:holds?|reads?)\b))|\blike (?:that|those|the one)\b": "repeat the noun",
    r"\b(?:put|laid|taken|told) (?:together|apart)\b|\badded up\b": "combine, separate, sum",
    r"\bin (?:other|another|its own|their own|such) ways?\b|\b(?:made|done|given) (?:once|twice)\b|\bcounts? twice\b": (
        "name the difference; repeat"
    ),
    r"\b(?:has|have|had) (?:it|them|this) (?:on|off|too)\b|\btakes? the rest\b": "enables, sets; the others",
    r"\bfor ever\b|\bin any case\b|\bas far as\b|\bof itself\b": "without limit; always; up to; automatically",
    r"\b(?:thereafter|hitherto|whereby|wherein|hence)\b|, too\b[.;:,]|, too$": "plain words: then, so, also",
    r"\b(?:knows?|knew|learns?|hears?) of\b": "reads, receives",
    r"\bfacts (?:are|were|agree|differ)\b": "name them: settings, values, results",
    r"\b(?:every|each|all) kinds? of\b": "list them, or 'all'",
    r"\bwhere (?:that|those|this|they|it|there|both|one|none|nothing|any|no)\b": "if, when, in which",
    r"\bwhatever\b|\bwhichever\b|\bhowever (?:many|much|long)\b|\bas long as (?:it|they|all) ": "any; until, while",
    r"\b(?:is|are|was|were|been) given\b|\bif given\b|\bwanted\b": "receives, sets, requests",
    r"\b(?:is|are|was|were) of (?:the|a|an|its|one|no|this|that|another|other)\b": "belongs to, counts",
    r"\b(?:is|are|was|were) (?:still )?to (?:be|end|come|go|say|have|give|write|read|wait)\b": "must, will",
    r"\bfor good\b|\bin vain\b|\bfor want of\b|\bis the point\b|\bnever quite\b": "permanently, because",
    r"\bfrom (?:now|then|here|there) on\b|, then on[.;:,]|, then on$|\bgo(?:es)? along\b": "after this step; continues",
    r"\b(?:is|are|was|were) (?:not|still|already|all|only) there\b|\bor not there\b": "is missing, exists",
    r"\b(?:needs?|holds?|makes?|leaves?|knows?) none\b|\bpays? (?:no|nothing)\b|\bno more\b(?! than)": "use 'not'",
    r"\bwhy not\b|\band why (?:these|this|not|it)\b|, an? \w+ each\b|\b(?:is|are) called by\b": "write a sentence",
}
_COMPILED = [(re.compile(pattern, re.IGNORECASE), hint) for pattern, hint in RULES.items()]
COMMON = re.compile(
    r"API|CI|CNN|CODE|CPU|CSV|CUDA|DNS|FLOP|GB|GPU|HTML|HTTP|HTTPS|ID|IO|IP|JSON|KB|KL|"
    r"LSTM|MB|MLP|NVIDIA|OS|PC|PNG|README|SLURM|SQL|SSH|SVG|TCP|TFLOP|TLS|URL|UTC|UTF|VGG|YAML|ZIP"
)
"""Abbreviations that readers of these pages know."""
_ABBREVIATION = re.compile(r"(?<![-\w])[A-Z]{2,6}\b(?![-\w])")
_PASSIVE = re.compile(
    r"\b(?:is|are|was|were|be|been|being) (?:\w+ly )?\w{2,}(?:ed|en|wn|lt|nt)\b", re.IGNORECASE
)

_FENCE = re.compile(r"^[ \t]*(?P<mark>```+|~~~+).*?^[ \t]*(?P=mark)[ \t]*$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_LIST_HEAD = re.compile(r"(?:Args|Attributes|Returns|Raises|Yields):")
_PREFORMATTED = re.compile(r"^ {4,}(?![*-] )|\S {3,}\S|[\u2190-\u21ff\u2500-\u259f]|-->|<--|\+--")
_END = re.compile(r"(?<=[.!?])[)\"'*]* +(?=[\"'(*]*[A-Za-z0-9])")
_SHORT = re.compile(r"\b(?:e\.g|i\.e|etc|vs|no|approx|Fig|Dr)\.$")
_WORD = re.compile(r"[A-Za-z0-9][\w'./-]*")


@dataclass(frozen=True)
class Sentence:
    """One sentence of a page, a message or a docstring.

    Attributes:
        place: file, with the line where the sentence's paragraph starts.
        text: without markup; `CODE` for each piece of inline code.
    """

    place: str
    text: str

    @property
    def words(self) -> int:
        """How many words it has; a piece of code counts as one."""
        return len(_WORD.findall(self.text))


def read_page(path: Path, root: Path = ROOT) -> Iterator[Sentence]:
    """The sentences of a Markdown file."""
    name = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
    text = _COMMENT.sub(_blank, _FENCE.sub(_blank, path.read_text()))
    for line, piece in _split_blocks(text):
        yield from _split_sentences(piece, f"{name}:{line}")


def read_messages(root: Path = ROOT) -> Iterator[Sentence]:
    """The sentences of all messages that carry a code."""
    for message in find_messages(root):
        text = CODE.sub("", message.sentence).replace("...", "CODE")
        yield from _split_sentences(text, f"{message.file}:{message.line}")


def read_docstrings(root: Path = ROOT) -> Iterator[Sentence]:
    """The sentences of all docstrings, paragraph by paragraph."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in sorted(path for package in PACKAGES for path in (root / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, documented) and (text := ast.get_docstring(node)):
                place = f"{path.relative_to(root).as_posix()}:{getattr(node, 'lineno', 1)}"
                for _, piece in _split_blocks(drop_lists(text)):
                    yield from _split_sentences(piece, place)


def drop_lists(docstring: str) -> str:
    """Return a docstring without the entries of its Args lists and without preformatted lines.

    An entry (`name: meaning`) is a noun phrase, and a diagram is not prose.
    """
    kept: list[str] = []
    in_list = False
    for line in docstring.splitlines():
        indented = line.startswith(" ")
        if _LIST_HEAD.fullmatch(line):
            in_list = True
        elif line.strip() and not indented:
            in_list = False
        entry = in_list and indented
        kept.append("" if entry or _PREFORMATTED.search(line) else line)
    return "\n".join(kept)


def find_problems(sentences: Iterable[Sentence]) -> Iterator[str]:
    """Each finding with its place; a sentence may have several."""
    for sentence in sentences:
        if sentence.words > LONGEST:
            yield f"{sentence.place}: {sentence.words} words, at most {LONGEST}: {sentence.text}"
        for pattern, hint in _COMPILED:
            if found := pattern.search(sentence.text):
                word = found[0].strip(" ,;:(")
                yield f"{sentence.place}: '{word}' -> {hint}: {sentence.text}"


def find_advice(sentences: Iterable[Sentence]) -> Iterator[str]:
    """Sentences with more than one passive."""
    for sentence in sentences:
        if len(_PASSIVE.findall(sentence.text)) > 1:
            yield f"{sentence.place}: several passives: {sentence.text}"


def find_undefined_terms(sentences: Iterable[Sentence], glossary: str) -> Iterator[str]:
    """Abbreviations at their first use that neither the glossary nor the page's own parentheses explain."""
    seen: set[str] = set()
    for sentence in sentences:
        for term in _ABBREVIATION.findall(sentence.text):
            explained = (
                COMMON.fullmatch(term) or f"({term})" in sentence.text or re.search(rf"\b{term}\b", glossary)
            )
            if term not in seen and not explained:
                yield f"{sentence.place}: '{term}' is not in the glossary: {sentence.text}"
            seen.add(term)


def measure_lengths(sentences: Iterable[Sentence]) -> tuple[int, float, float]:
    """How many sentences there are, the median of their words and the 95th percentile."""
    words = sorted(sentence.words for sentence in sentences if sentence.words >= SHORTEST)
    if not words:
        return 0, 0.0, 0.0
    return len(words), statistics.median(words), words[min(len(words) - 1, int(0.95 * len(words)))]


def list_pages(root: Path = ROOT) -> list[Path]:
    """The root's pages, docs and decisions; the generated list of codes counts as messages."""
    found = [*root.glob("*.md"), *(root / "docs").glob("*.md"), *(root / "docs/decisions").glob("*.md")]
    return sorted(page for page in found if page.name != "codes.md")


def _blank(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")


def _split_blocks(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of each paragraph, item, heading and cell."""
    start = 1
    lines: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        bare = line.strip()
        begins = re.match(r"[-*+] |\d+\. |#+ |\||!!!|\?\?\?|[A-Z]\w+:$", bare) or not bare
        if begins and lines:
            yield start, " ".join(lines)
            lines = []
        if bare.startswith("|"):
            if not re.fullmatch(r"[|:\- ]+", bare):
                for cell in re.split(r"(?<!\\)\|", bare.strip("|")):
                    yield number, cell.strip()
        elif bare and not bare.startswith("!["):
            if not lines:
                start = number
            lines.append(re.sub(r"^(?:[-*+] (?:\[.\] )?|\d+\. |#+ |> ?|!!! \w+|\?\?\? \w+)", "", bare))
            if bare.startswith("#"):
                yield start, " ".join(lines)
                lines = []


def _split_sentences(text: str, place: str) -> Iterator[Sentence]:
    text = re.sub(r"``.+?``|`[^`]+`", "CODE", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<[^>]+>|\*{1,3}|(?<!\w)_{1,3}(?=\S)|(?<=\S)_{1,3}(?!\w)", "", text)
    rest = " ".join(text.replace("\u2019", "'").split())
    begin = 0
    for end in [*(match.end() for match in _END.finditer(rest)), len(rest)]:
        piece = rest[begin:end].strip()
        if piece and not _SHORT.search(piece):
            yield Sentence(place, piece)
            begin = end


def main(arguments: list[str]) -> int:
    """Print findings and figures; the exit code is 1 if a page has a finding."""
    pages = [Path(each).resolve() for each in arguments] or list_pages()
    groups = {"pages": [sentence for page in pages for sentence in read_page(page)]}
    if not arguments:
        groups |= {"messages": [*read_messages()], "docstrings": [*read_docstrings()]}
    for name, sentences in groups.items():
        problems = [*find_problems(sentences)]
        if name == "pages":
            print(*problems, sep="\n", end="\n" if problems else "")
        if arguments:
            advice = [*find_advice(sentences), *find_undefined_terms(sentences, GLOSSARY.read_text())]
            print(*(f"advice: {each}" for each in advice), sep="\n", end="\n" if advice else "")
        count, median, highest = measure_lengths(sentences)
        print(
            f"{name}: {len(problems)} findings in {count} sentences; "
            f"median {median:g} words, 95 % at most {highest:g}"
        )
    return int(any(find_problems(groups["pages"])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
