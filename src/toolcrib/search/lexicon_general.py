"""General pairs: what the people who ask for tools and those who name them call the same thing.

A line holds a word and, behind the colon, words that a tool builder might use in its place. A word may stand in several
lines. The words behind one colon are not thereby the same as each other.
"""

VERBS = """
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

NOUNS = """
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
