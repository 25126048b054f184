"""The shipped workloads: seeded prompt writers. Each is a pure function of (random stream, author name).

A writer returns `(text, category)`: one user message in plain ASCII and what kind of task it is. The text opens with
the author's name, which no other index has, so a prefix cache shared between requests finds only the tokens before it.
Raise GENERATOR_VERSION with any change here that changes a prompt: runs are told apart by it.
"""

import textwrap
from collections.abc import Callable
from hashlib import sha256
from random import Random

from toolkit.analysis.vocabulary import WORDS, fill, listed, pick

GENERATOR_VERSION = 1

Writer = Callable[[Random, str], tuple[str, str]]

_SYLLABLES = [consonant + vowel for consonant in "bdflmnrstvwy" for vowel in "aeio"]
_NAMES = len(_SYLLABLES) ** 5
# Shares no factor with _NAMES, so steps of it visit every name once; near 0.618 of it, so neighbors look unlike.
_STRIDE = 157_477_513


def author_name(workload: str, seed: int, index: int) -> str:
    """First and last name, such as "Tali Boredo". Distinct for all indices below 48**5 of one (workload, seed)."""
    start = int.from_bytes(sha256(f"{workload}/{seed}".encode()).digest())
    number = (start + index * _STRIDE) % _NAMES
    syllables = []
    for _ in range(5):
        number, digit = divmod(number, len(_SYLLABLES))
        syllables.append(_SYLLABLES[digit])
    return "".join(syllables[:2]).title() + " " + "".join(syllables[2:]).title()


def write(workload: str, seed: int, index: int) -> tuple[str, str]:
    """The text and category of one prompt. `workload` is a key of WRITERS or LOAD_ONLY; KeyError otherwise."""
    # A string seeds Random through SHA-512: the same stream in every process, unlike hash().
    writer = {**WRITERS, **LOAD_ONLY}[workload]
    return writer(Random(f"{workload}/{seed}/{index}"), author_name(workload, seed, index))


# --- copy-code: repeat or edit given code, the traffic that a method which guesses from the prompt hopes for ---

_STATEMENTS = [  # {a}, {b}: names in scope; {new}: a name not used so far; the other slots as in `fill`.
    "{new} = {a} * {2-99} + {b}",
    "{new} = max({a}, {b} - {10-900})",
    "{new} = [{a}, {b}, {100-999}]",
    "{new} = {'{noun}': {a}, '{noun}': {3-70}}",
    "{new} = sorted(entry.{noun} for entry in {a})",
    "{new} = {verb}_{noun}({a}, {noun}={5-500})",
    "{new} = {a} if {b} > {2-60} else '{trait}'",
    "if {a} < {20-800}:\n    {b} += {2-19}",
    "if not {a}:\n    raise ValueError('{trait} {noun}')",
    "for {new} in {a}:\n    {b}.append({new} % {3-40})",
    "for step in range({4-90}):\n    {a} -= step * {b}",
    "while {a} > {30-400}:\n    {a} //= {2-9}",
    "assert {a} != {b}, '{trait} {noun}'",
    "print(f'{noun} is {trait}: {{a}}')",
    "try:\n    {new} = {a}['{noun}']\nexcept KeyError:\n    {new} = {b}",
    "with open('{noun}_{10-99}.txt') as {new}:\n    {a} = {new}.read()",
    "{a}, {b} = {b}, {a} + {11-99}",
]
_CODE_CHARACTERS = 400  # Stop adding statements here; the last function's end brings the code to 400..620.


def _code(rng: Random, stem: str) -> tuple[str, list[str]]:
    """Python that parses, 400 to 620 characters, and the function and argument names in it."""
    fresh = iter(rng.sample(WORDS["noun"], len(WORDS["noun"])))
    indent = rng.choice(["", "    "])
    code = f"{next(fresh).upper()} = {rng.randint(100, 9999)}\n"
    if indent:
        title = stem.title().replace("_", "")
        code += fill(rng, '\n\nclass {title}:\n    """Keeps the {trait} {noun}."""\n', title=title)
    names: list[str] = []
    while len(code) < _CODE_CHARACTERS:
        function, a, b = f"{pick(rng, 'verb')}_{next(fresh)}", next(fresh), next(fresh)
        names += [function, a, b]
        code += f"\n{indent}def {function}({'self, ' if indent else ''}{a}, {b}={rng.randint(2, 99)}):\n"
        scope = [a, b]
        for template in rng.sample(_STATEMENTS, rng.randint(3, 5)):
            first, second = rng.sample(scope, 2)
            if "{new}" in template:
                scope.append(next(fresh))
            statement = fill(rng, template, a=first, b=second, new=scope[-1])
            code += textwrap.indent(statement, f"{indent}    ") + "\n"
            if len(code) >= _CODE_CHARACTERS:
                break
        code += f"{indent}    return {scope[-1]}\n"
    return code, names


def _copy_code(rng: Random, author: str) -> tuple[str, str]:
    stem = author.lower().replace(" ", "_")
    code, names = _code(rng, stem)
    given = f"{author} wrote this code:\n\n```python\n{code}```\n\n"
    dice = rng.random()
    if dice < 0.5:
        return f"{given}Repeat this code exactly as it is.", "repeat"
    if dice < 0.8:
        old, new = rng.choice(names), f"{pick(rng, 'trait')}_{stem.split('_')[0]}"
        return f"{given}Write the code again with {old} renamed to {new}.", "rename"
    return f"{given}Repeat this code and explain it.", "explain"


# --- extract: quoting from a record, where copies are shorter and must be found ---

_RECORDS = {  # category: (head, repeated line, foot, requests)
    "order": (
        "order {1000-9999}, {1-28} {month}\nTo: sales office, {town}\n\n"
        "Please deliver to {2-180} {noun} Street, {town}:\n",
        "- {2-90} {good}, item {noun}-{100-999}, {2-60}.{10-99} each\n",
        "\nThe invoice goes to {town}, the {good} may come later.\nKind regards\n",
        ["Quote all the item lines of this order", "Quote the first six item lines of this order"],
    ),
    "log": (
        "{noun} server, {1-28} {month}\n",
        "{10-23}:{10-59}:{10-59} {service} {trait} {noun} {1000-9999} took {2-950} ms\n",
        "end of log, {2-40} lines left out\n",
        ["Quote the first eight lines of this log", "Quote all the lines of this log"],
    ),
    "minutes": (
        "minutes of the {town} {noun} club, {1-28} {month}\nPresent: {3-30} members and the {job}\n\n",
        "* The {job} will {verb} the {trait} {noun} before {1-28} {month}, cost {20-900}.{10-99}.\n",
        "\nThe next meeting is on {1-28} {month} in {town}.\n",
        ["Quote all the tasks in these minutes", "Quote the first five tasks with their dates and costs"],
    ),
    "bookings": (
        "guest house in {town}, bookings for {month}\n",
        "Room {100-499}: the {job} from {town}, {2-14} nights from {1-28} {month}, paid {60-990}.{10-99}\n",
        "Breakfast at {6-9}, keys with the {job}.\n",
        ["Quote all the bookings", "Quote the first five bookings with their rooms and payments"],
    ),
}
_RECORD_CHARACTERS = 600


def _extract(rng: Random, author: str) -> tuple[str, str]:
    category = rng.choice(list(_RECORDS))
    head, line, foot, requests = _RECORDS[category]
    document = f"{author}, {fill(rng, head)}"
    while len(document) < _RECORD_CHARACTERS:
        document += fill(rng, line)
    document += fill(rng, foot)
    return f"{document}\n{rng.choice(requests)}, word for word. Reply with the quoted lines only.", category


# --- chat: short everyday questions, where little can be copied ---

_QUESTIONS = {
    "cooking": ["What can I cook with {food} and {food} in {time}?", "How do I keep {food} fresh for {time}?"],
    "garden": [
        "Why does {plant} next to my {thing} look so {trait}?",
        "When should I plant {plant} and {plant} in {month}?",
    ],
    "travel": [
        "What should I see in {time} around {town} in {month}?",
        "How do I pack for {time} with my {person} and a {pet}?",
    ],
    "sleep": [
        "I wake up at {2-5} every night. What could help within {time}?",
        "How do I sleep when my {person} is noisy?",
    ],
    "money": [
        "How can I save {200-5000} by {month} on a small wage?",
        "Should I repair my {thing} for {40-400} or buy a new one?",
    ],
    "work": [
        "How do I tell my {person} that I need {time} off in {month}?",
        "How do I ask for {3-15} percent more pay?",
    ],
    "home": [
        "My {thing} makes a strange noise after {time}. What should I check?",
        "How do I clean my {thing} in {time}?",
    ],
    "pets": ["My {pet} is afraid of the {thing}. What can I do?", "How do I get a {pet} used to my {person}?"],
    "learning": [
        "How do I learn {skill} with {10-60} minutes a day?",
        "Is {skill} or {skill} easier to start at {20-75}?",
    ],
    "people": [
        "My {person} borrowed my {thing} and forgot it. What do I say?",
        "What is a good gift for a {job} who likes {skill}?",
    ],
    "science": [
        "How would you explain to my {person} what heat does to {food}?",
        "How does my {thing} work inside?",
    ],
    "health": [
        "What are light exercises for a {job} who sits {5-11} hours a day?",
        "How do I walk {4-20} km without sore feet?",
    ],
}
_OPENINGS = [
    "{author} here, a {job} from {town}. ",
    "I'm {author}, {18-85}, {job} in {town}. ",
    "{author} from {town} asks: ",
]
_CLOSINGS = listed(
    "Please be brief., Give me three options., Explain it simply., What is the most common mistake?, What comes "
    "first?, I have about {20-300} to spend., Tell me why as well., My {person} disagrees with me., I have tried for "
    "{time}."
)


def _chat(rng: Random, author: str) -> tuple[str, str]:
    topic = rng.choice(list(_QUESTIONS))
    parts = rng.choice(_OPENINGS), rng.choice(_QUESTIONS[topic]), " " + rng.choice(_CLOSINGS)
    return fill(rng, "".join(parts), author=author), topic


# --- copy-list: short prompts, for machines on which the passes over long ones would drown the answers ---


def _copy_list(rng: Random, author: str) -> tuple[str, str]:
    items = "; ".join(["{trait} {noun} {100-9999}"] * rng.randint(6, 8))
    return fill(rng, f"{{author}} counted: {items}. Repeat this list exactly as it is.", author=author), "repeat"


# --- creative: invented text, which only a draft that knows the language can guess ---

_FORMS = {
    "story": ["Write a {mood} short story about this.", "Tell it as a {mood} story that ends well."],
    "poem": ["Write a {mood} poem about this in {3-6} verses.", "Make a {mood} poem of it that does not rhyme."],
    "dialogue": ["Write the {mood} dialogue between them.", "Write their {mood} talk as a scene for the stage."],
    "letter": ["Write the {mood} letter that is sent afterwards.", "Write the {mood} letter found {3-90} years later."],
    "fable": [
        "Turn this into a {mood} fable with a {pet} and a moral.",
        "Write a {mood} fable in which a {pet} tells this.",
    ],
    "song": ["Write the lyrics of a {mood} song about it with a chorus.", "Write a {mood} lullaby about it."],
}
_SCENE = "{author}, a {job} from {town}, meets a {job} in {place}. One of them carries {object}, and {event}. "


def _creative(rng: Random, author: str) -> tuple[str, str]:
    form = rng.choice(list(_FORMS))
    return fill(rng, _SCENE + rng.choice(_FORMS[form]), author=author), form


WRITERS: dict[str, Writer] = {
    "copy-code": _copy_code,
    "copy-list": _copy_list,
    "extract": _extract,
    "chat": _chat,
    "creative": _creative,
}


# --- random: words without sense, for load alone ---

_ANY_WORD = sorted({word for kind in WORDS.values() for item in kind for word in item.split()})
_RANDOM_WORDS = 100


def _random(rng: Random, author: str) -> tuple[str, str]:
    return f"{author} {' '.join(rng.choices(_ANY_WORD, k=_RANDOM_WORDS))}", "random"


LOAD_ONLY: dict[str, Writer] = {"random": _random}
"""Not among the WRITERS: no claim about a draft can rest on them."""
