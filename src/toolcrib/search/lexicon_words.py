"""The printed pairs and domains: the words of sciences, files, networks, data, texts, pictures and sound.

A line holds a word and, behind the colon, the words that mean the same to somebody who asks for a tool.
"""

PRINTED = """
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

DOMAINS = """
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
