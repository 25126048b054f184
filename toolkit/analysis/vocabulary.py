"""The words of the shipped workloads, and how a template is filled with them.

A change here changes prompts: raise `generators.GENERATOR_VERSION` with it.
"""

import re
from random import Random


def listed(text: str) -> list[str]:
    """What stands between the commas."""
    return [item.strip() for item in text.split(",")]


WORDS = {
    "noun": listed(
        "anchor, basket, bridge, candle, carpet, cellar, circle, copper, corner, cradle, engine, feather, fence, "
        "filter, garden, hammer, harbor, kettle, ladder, lantern, ledger, marble, market, meadow, mirror, needle, "
        "orchard, packet, pebble, pillar, pocket, quarry, ribbon, saddle, shelter, signal, socket, spindle, summit, "
        "tablet, temple, thread, timber, tunnel, valley, vessel, wagon, window, winter, zipper"
    ),
    "verb": listed(
        "align, balance, bundle, collect, combine, count, discard, estimate, expand, gather, inspect, label, "
        "measure, merge, narrow, order, pack, pick, prune, reduce, refill, repair, review, rotate, scale, select, "
        "settle, shift, split, trim"
    ),
    "trait": listed(
        "active, brittle, closed, dirty, eager, frozen, hollow, idle, loose, narrow, pending, ready, sealed, stale"
    ),
    "job": listed(
        "nurse, baker, bus driver, librarian, carpenter, student, beekeeper, teacher, plumber, gardener, translator, "
        "dentist, farmer, tailor, postman, night watchman, piano tuner, ferry captain, retired clerk, shop owner"
    ),
    "town": listed(
        "Aldermoor, Birchfield, Copperhill, Dunwater, Elmstead, Fernley, Greywick, Hollowbay, Ivybridge, Kettleford, "
        "Larkholm, Millbrook, Northam, Oakhurst, Pinecrest, Redbank, Saltmarsh, Thornby, Underwood, Westhaven"
    ),
    "good": listed(
        "steel hinges, oak planks, paint rollers, copper pipes, wool blankets, garden hoses, paper bags, glass jars, "
        "door handles, work gloves, candle wicks, bicycle tubes, tin boxes, cotton sheets, seed trays, rope coils"
    ),
    "service": listed(
        "billing, search, mailer, uploads, catalog, login, reports, archive, gateway, scheduler, payments, stock"
    ),
    "month": listed("January, February, March, April, May, June, July, August, September, October, November, December"),
    "food": listed(
        "red lentils, stale bread, leeks, too many eggs, a pumpkin, cold rice, chickpeas, green tomatoes, smoked "
        "fish, beetroot, a cauliflower, oats, mushrooms, sour milk, dried plums, cabbage"
    ),
    "plant": listed(
        "basil, roses, a lemon tree, tomatoes, lavender, a fern, strawberries, a fig tree, beans, orchids, mint, peas"
    ),
    "pet": listed("cat, shy dog, puppy, parrot, rabbit, hamster, tortoise, goldfish, hen, pony, guinea pig, kitten"),
    "skill": listed(
        "the violin, chess, Spanish, swimming, watercolor painting, knitting, juggling, touch typing, basic algebra, "
        "photography, woodcarving, bread baking, sign language, singing, Latin, sailing"
    ),
    "thing": listed(
        "washing machine, bicycle, laptop, phone, front door, radiator, kitchen tap, old car, printer, wardrobe, "
        "window, lawn mower, fridge, bookshelf, umbrella, alarm clock"
    ),
    "person": listed(
        "neighbor, sister, boss, uncle, best friend, roommate, colleague, cousin, landlord, grandmother, son, teacher"
    ),
    "time": listed(
        "two days, a week, ten minutes, half an hour, three evenings, a long weekend, one month, a whole summer"
    ),
    "place": listed(
        "a lighthouse, a night train, an empty museum, a frozen lake, a desert inn, a rooftop garden, a flooded "
        "library, a mountain hut, a closed circus, a ferry in fog, a clock tower, a salt mine, a space station, a "
        "quiet village"
    ),
    "object": listed(
        "a blue umbrella, a broken compass, an unsigned letter, a jar of honey, a wooden horse, a rusty key, a paper "
        "map, a silver whistle, a left shoe, a music box, a burnt recipe, a pocket mirror, a glass marble, a torn "
        "ticket"
    ),
    "mood": listed("gentle, funny, sad, hopeful, strange, dreamy, proud, restless, calm, bittersweet, playful, solemn"),
    "event": listed(
        "a storm is coming, nobody remembers the date, all the clocks stop, an old friend returns, the lights go "
        "out, a stranger tells the truth, the river changes its course, the last bus has left, it snows in July, a "
        "promise is broken, a child asks the right question, the birds fall silent"
    ),
}


def pick(rng: Random, kind: str) -> str:
    """A word of that kind."""
    return rng.choice(WORDS[kind])


def fill(rng: Random, template: str, **known: str) -> str:
    """Replace each {slot}: by its value in `known`, a word of that kind not yet used, or, for {low-high}, a number."""
    used: set[str] = set()

    def value(slot: re.Match[str]) -> str:
        if slot[1] in known:
            return known[slot[1]]
        if "-" in slot[1]:
            low, high = slot[1].split("-")
            return str(rng.randint(int(low), int(high)))
        chosen = rng.choice([word for word in WORDS[slot[1]] if word not in used])
        used.add(chosen)
        return chosen

    return re.sub(r"\{([a-z0-9-]+)\}", value, template)
