"""Synonyms of the words that tools and requests use, and the field of knowledge (domain) of a word.

Pairs hold in both directions and are not transitive: `a` with `b` and `b` with `c` say nothing about `a` and `c`.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, product

from toolcrib.checks import checked
from toolcrib.search.text import STOP_WORDS, TOKEN, split_identifier, stem

SynonymPair = tuple[str, str]
"""Two lower-case words in alphabetical order."""

_IRREGULAR_FORMS = {
    "times": "times",
    "news": "news",
    "setting": "settings",
    "settings": "settings",
    "building": "building",
    "buildings": "building",
    "meaning": "meaning",
    "meanings": "meaning",
}
"""Words that only look like a form of another word (`times` of `time`, `news` of `new`), and their own base form."""

_HAS_DIGIT = re.compile(r"\d")

_NUMBER = re.compile(r"\d{2,}")

_MAX_CACHED = 16_384
"""Words whose synonyms are cached."""

_SILENT_E_PLURAL = re.compile("[^sxzhoi]es")
"""The end of a plural whose singular certainly ends in e."""


@checked(methods=("with_pairs", "synonym_stems", "related", "domains_of", "all_synonym_stems"))
@dataclass(frozen=True, slots=True)
class Lexicon:
    """Pairs of synonyms, and the words of each domain. All forms of a word count as that word."""

    pairs: frozenset[SynonymPair]
    domains: Mapping[str, frozenset[str]] = field(hash=False)
    """The words of each domain, by its name."""
    _related: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)
    _fields: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)

    _stems: dict[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_stems", {})
        both_ways = chain(self.pairs, ((other, one) for one, other in self.pairs))
        object.__setattr__(self, "_related", _by_form(both_ways))
        members = (
            (part, name) for name, words in self.domains.items() for word in words for part in _with_numbers(word)
        )
        object.__setattr__(self, "_fields", _by_form(members))

    @classmethod
    def default(cls) -> "Lexicon":
        """The lexicon with all pairs in the package."""
        return _default_lexicon()

    @classmethod
    def points(cls) -> "Lexicon":
        """The smaller lexicon of the `points` scorer: sciences, files, networks, data, texts, pictures and sound."""
        return _reference_lexicon()

    def with_pairs(self, pairs: Iterable[tuple[str, str | Iterable[str]]]) -> "Lexicon":
        """Return a lexicon with more pairs: each word with its synonyms.

        A phrase counts as its single words, without stop words.

        >>> own = Lexicon.default().with_pairs([("sprint", ["iteration"]), ("poi", ["point of interest"])])
        >>> own.related("sprints"), own.related("poi")
        (('iteration',), ('interest', 'point'))
        """
        return Lexicon(self.pairs | frozenset(_synonym_pairs(pairs)), self.domains)

    def synonym_stems(self, word: str) -> tuple[str, ...]:
        """The stems of the synonyms of a word, each once. Cached, but not for numbers."""
        found = self._stems.get(word)
        if found is None and word.isdigit():
            return tuple(dict.fromkeys(map(stem, self.related(word))))
        if found is None:
            if len(self._stems) >= _MAX_CACHED:
                self._stems.clear()
            found = self._stems[word] = tuple(dict.fromkeys(map(stem, self.related(word))))
        return found

    def all_synonym_stems(self, words: Iterable[str]) -> tuple[tuple[str, ...], ...]:
        """The same for each of some words."""
        known = self._stems
        return tuple([known[word] if word in known else self.synonym_stems(word) for word in words])

    def related(self, word: str) -> tuple[str, ...]:
        """The synonyms of a lower-case word, in alphabetical order.

        >>> Lexicon.points().related("averages"), Lexicon.points().related("mean"), Lexicon.points().related("zebra")
        (('mean',), ('average', 'expected', 'mu'), ())
        """
        found = [self._related[form] for form in _forms(word) if form in self._related]
        return found[0] if len(found) == 1 else tuple(sorted(set().union(*found)))

    def domains_of(self, words: Iterable[str]) -> frozenset[str]:
        """The domains that contain one of the lower-case words. `base64` is also found by `64`.

        >>> sorted(Lexicon.default().domains_of(["files", "volume", "zebra"]))
        ['audio_processing', 'file_operations', 'geometry']
        """
        forms = (form for word in words for form in _forms(word))
        return frozenset().union(*(self._fields.get(form, ()) for form in forms))


def _forms(word: str) -> tuple[str, ...]:
    """The possible base forms of a word: its stem, and the stem with an e. A word that ends in e is its own base form.

    The stem alone would confuse `care` with `car`, and `state` with `stats`.

    >>> [_forms(word) for word in ("queries", "states", "stats", "boxes", "creating", "planning", "k8s")]
    [('queri', 'querie'), ('state',), ('stat',), ('box', 'boxe'), ('creat', 'create'), ('plan',), ('k8s',)]
    """
    if word in _IRREGULAR_FORMS:
        return (_IRREGULAR_FORMS[word],)
    if word.endswith("e") or word.isdigit():
        return (word,)
    base = stem(word)
    if base == word or not word.endswith(("ing", "ings", "ed", "es")):
        return (base,)
    if _SILENT_E_PLURAL.fullmatch(word[-3:]):
        return (base + "e",)
    doubled = word.startswith(base + base[-1])
    return (base,) if doubled else (base, base + "e")


def _with_numbers(word: str) -> list[str]:
    """A word and the number in it: `split_words` splits `base64`, and `64` identifies it.

    >>> _with_numbers("base64"), _with_numbers("json")
    (['base64', '64'], ['json'])
    """
    return [word, *_NUMBER.findall(word)]


def _synonym_pairs(lines: Iterable[tuple[str, Iterable[str]]]) -> Iterator[SynonymPair]:
    """Pair each word on the left of a line with each one on the right."""
    for left, rights in lines:
        several = (rights,) if isinstance(rights, str) else rights
        for one, other in product(_content_words(left), (word for right in several for word in _content_words(right))):
            if set(_forms(one)).isdisjoint(_forms(other)):
                yield (one, other) if one < other else (other, one)


def _content_words(phrase: str) -> list[str]:
    """The words of a phrase without stop words. A word with digits, such as `k8s`, stays whole."""
    tokens = TOKEN.findall(phrase)
    found = [
        word for token in tokens for word in ((token.lower(),) if _HAS_DIGIT.search(token) else split_identifier(token))
    ]
    return [word for word in found if word not in STOP_WORDS] or found


def _by_form(pairs: Iterable[SynonymPair]) -> Mapping[str, tuple[str, ...]]:
    """Group the right-hand words by the base forms of the left-hand ones."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for left, right in pairs:
        for form in _forms(left):
            found[form].add(right)
    return {form: tuple(sorted(rights)) for form, rights in found.items()}


def _parse_lines(text: str) -> Iterator[tuple[str, list[str]]]:
    for line in text.split("\n"):
        if line:
            head, _, rest = line.partition(":")
            yield head, rest.split()


@cache
def _reference_lexicon() -> Lexicon:
    domains = {name: frozenset(members) for name, members in _parse_lines(_DOMAIN_WORDS)}
    return Lexicon(frozenset(_synonym_pairs(_parse_lines(_REFERENCE_SYNONYMS))), domains)


@cache
def _default_lexicon() -> Lexicon:
    return _reference_lexicon().with_pairs(_parse_lines(_VERB_SYNONYMS + _EVERYDAY_SYNONYMS + _NOUN_SYNONYMS))


_REFERENCE_SYNONYMS = """
normal: gaussian bell
gaussian: bell
cdf: cumulative distribution
pdf: probability density
mean: average expected mu
std: standard deviation sigma

add: sum plus
multiply: times product
sqrt: square root
divide: quotient
min: minimum smallest
max: maximum largest

matrix: matrices array tensor
vector: array list tuple
transpose: flip swap
inverse: invert reciprocal
dot: inner scalar

area: surface size
distance: length magnitude norm
angle: degree radian rotation

read: get load fetch retrieve
write: save store put
delete: remove rm erase
list: ls dir enumerate
copy: duplicate clone

concat: concatenate join merge
split: separate divide tokenize
trim: strip clean
upper: uppercase capitalize
lower: lowercase downcase

http: request api fetch
get: fetch retrieve request
post: send submit create
download: fetch retrieve get
connect: open establish

query: select sql search
insert: add create put
update: modify change set
table: collection entity

encrypt: encode cipher secure
decrypt: decode decipher
hash: digest checksum fingerprint
sign: signature verify
key: secret password credential

compress: zip gzip deflate
decompress: unzip inflate
encode: serialize marshal
decode: deserialize unmarshal

train: fit learn optimize
predict: infer forecast estimate
model: network classifier
accuracy: precision recall score
cluster: group segment

tokenize: split segment parse
stem: lemma root base
sentiment: emotion opinion polarity
classify: categorize label

image: picture photo graphic
resize: scale transform shrink
crop: trim cut clip
rotate: turn spin flip

audio: sound music
volume: gain amplitude level
play: start resume

async: asynchronous await
parallel: concurrent multithread
lock: mutex semaphore
thread: worker task
"""

_DOMAIN_WORDS = """
statistics: normal gaussian probability distribution cdf pdf
arithmetic: add subtract multiply divide
number_theory: prime factor gcd lcm
linear_algebra: matrix vector transpose determinant eigenvalue
geometry: circle triangle area perimeter volume
trigonometry: sin cos tan radians degrees
file_operations: file read write directory path
string_operations: string concat split trim replace
network: http api request fetch socket
database: query sql select insert table
cryptography: encrypt decrypt hash sign certificate
encoding: base64 compress encode json xml
machine_learning: train predict model accuracy feature
nlp: tokenize stem entity sentiment classify
image_processing: image pixel resize crop filter
audio_processing: audio sound sample frequency volume
concurrency: async parallel thread lock mutex
"""

_VERB_SYNONYMS = """
fetch: retrieve obtain
get: obtain show
show: display view
list: show browse get
create: add make new generate creation
make: build generate
generate: generator generation
add: append
delete: drop destroy purge deletion
remove: drop erase clear
update: edit patch
edit: modify change
modify: change
search: find lookup
find: lookup locate discover query
send: deliver dispatch
post: publish
run: execute start invoke
execute: invoke perform
start: launch
trigger: invoke start
stop: cancel abort terminate halt
cancel: abort
terminate: end
kill: stop
pause: suspend
resume: continue
restart: reboot
schedule: book plan
book: reserve
reserve: reservation
booking: reservation
buy: purchase order
purchase: order
translate: translation translator
convert: exchange conversion converter transform
calculate: compute calc calculation calculator
count: total
sum: total aggregate
notify: alert notification inform
alert: notification warn alarm
remind: reminder
check: verify validate inspect
verify: validate confirm
validate: validation validator
compare: diff comparison
diff: difference
analyze: analyse analysis analytics
recommend: suggest recommendation
suggest: suggestion
summarize: summary summarise
summary: overview
describe: description
import: ingest
backup: snapshot
restore: recover
undo: revert rollback
revert: rollback
move: relocate transfer
transfer: send
merge: combine
enable: activate
disable: deactivate
reject: decline deny
subscribe: subscription
register: registration signup
monitor: track observe
reply: respond answer
respond: response
answer: response
compose: write draft
draft: write
draw: sketch
plot: chart graph
chart: graph
visualize: plot chart
choose: pick
scrape: crawl
extract: parse extraction
detect: detection
recognize: recognition
transcribe: transcription transcript
debug: troubleshoot diagnose
fix: repair
rent: lease hire rental
invite: invitation
deploy: deployment
install: installation
evaluate: evaluation
configure: configuration
optimize: optimization
predict: prediction
classify: classification
compress: compression
solve: solver
speak: talk
pay: payment
"""

_EVERYDAY_SYNONYMS = """
remember: memory memorize recall knowledge
memorize: memory knowledge
recall: memory
forget: memory delete
fact: knowledge
know: knowledge
mind: memory
note: memory memorize
visit: navigate browse
browser: web
url: navigate
webpage: url
site: url page
homepage: page site website
link: webpage
tap: click press
hit: press click
press: click
popup: dialog
dialog: modal alert
screenshot: capture snapshot picture
snap: capture screenshot
dropdown: select option
shut: close
rain: weather forecast
snow: weather forecast
umbrella: rain weather
storm: weather alert
hurricane: storm weather alert
warm: temperature weather
cold: temperature weather
sunny: weather
wind: weather
drive: directions route
walk: directions route
way: directions route
nearby: local places near
near: local
high: height
height: elevation
google: search
internet: online
online: web
subtitle: transcript
caption: transcript
structure: tree
disk: storage drive filesystem
rename: move
fix: edit correct
typo: spelling
replace: edit substitute
history: log
uncommitted: unstaged
switch: checkout change
reopen: open update
assign: assignee update
trash: delete
throw: delete
discard: delete
wipe: erase delete
attachment: attach
postpone: reschedule update move
reschedule: update move
plan: event agenda
meeting: calendar
told: remember memory knowledge
busy: freebusy availability free
free: freebusy availability available
attend: respond
thumb: reaction
emoji: reaction
sql: database select
raise: create
download: save
say: content
written: content text
looks: screenshot snapshot
tap: button
button: click
submit: create send
approve: accept review
accept: merge
reviewer: review
build: check status
hour: time
clock: time
noon: time
today: date current
big: size
archive: store
join: merge
say: message comment
repeat: echo
person: user
"""

_NOUN_SYNONYMS = """
email: mail message inbox
mail: message inbox
message: msg sms text
repository: repo
pr: pull request
mr: merge request
issue: ticket bug
bug: defect error
error: exception failure
todo: task
task: job
job: vacancy career
database: db
kubernetes: k8s
vm: virtual machine instance server
server: machine instance host
user: account member
member: participant
people: person
folder: directory
dir: directory folder
photo: picture photograph
image: img
movie: film
flight: airline plane
plane: aircraft airplane
hotel: accommodation lodging
accommodation: lodging
doc: document file documentation
document: file
pdf: document
calendar: event agenda schedule
event: meeting appointment
meeting: appointment
weather: forecast temperature
temperature: temp
stock: share equity ticker
ticker: symbol
currency: money forex
forex: fx
crypto: cryptocurrency coin
price: cost fee quote
cost: fee expense
location: place address position
place: venue
coordinate: latitude longitude gps
route: direction path
direction: navigation
navigate: navigation
auth: login authentication authorization
login: signin
authenticate: authentication
authorize: authorization
config: configuration settings
configuration: settings preference
environment: env
kb: knowledge base
spreadsheet: sheet excel
sheet: excel
presentation: slide deck
slide: deck
chat: conversation
video: clip
song: music track
artist: singer
article: post blog
blog: post
news: article headline
customer: client
invoice: bill
payment: charge transaction
cart: basket
doctor: physician
drug: medication medicine
medication: medicine prescription
disease: illness
hospital: clinic
information: info
number: num
address: addr
command: cmd
organization: org organisation company
application: app
ml: machine learning
ai: artificial intelligence
llm: language model
url: link website
website: site webpage
web: internet
phone: telephone tel mobile
id: identifier
uuid: identifier guid
tag: label
category: topic
timezone: tz
duration: length
parameter: param argument
attribute: property
field: column
row: record
record: entry
function: func method
package: library module dependency
documentation: manual guide
guide: tutorial
incident: outage
status: state
cron: schedule
bucket: storage
memory: ram
cpu: processor
host: hostname
page: webpage
permission: access role
token: credential
review: feedback rating
comment: note
note: memo
team: group
course: lesson class
university: college
restaurant: dining
food: meal
recipe: dish meal
nutrition: calorie
workout: exercise fitness
car: vehicle automobile
taxi: cab
transport: transit transportation
trip: travel journey itinerary
vacation: holiday
apartment: flat
country: nation
city: town
area: region
postcode: zip postal
language: locale
definition: meaning
synonym: thesaurus
quote: quotation
coupon: discount voucher
shop: store
delivery: shipping shipment
shipment: parcel package
supplier: vendor
employee: staff
salary: wage
loan: mortgage
investment: portfolio invest
revenue: income earnings
advertisement: ad
regex: pattern
percent: percentage
speed: velocity
weight: mass
altitude: elevation
earthquake: quake seismic
horoscope: zodiac
pollution: aqi
color: colour
qr: barcode
subtitle: caption
tv: television
speech: voice
"""
