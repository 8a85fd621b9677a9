"""The protocol: message types, their canonical encoding, and their validation. Never a socket, never torch.

On a socket a message is ``[envelope, header, frame...]``, each one part of a multipart message.

*Header* (charged). msgpack of ``[protocol, type, run id, {field: value}, [entry...]]``. Every number is packed in a
form whose length does not depend on its value: integers and floats as 8 bytes, big-endian, in a msgpack ``bin``; so the
length of a header follows from names and shapes alone, and `train_nbytes` and `update_nbytes` give it before a message
exists. One *entry* per frame: ``[slot, key, version, dtype, shape, nbytes, checksum]``; version is the 16 bytes of
`Vector.version` for vectors that go down and zeros for those that go up; checksum is the CRC-32 of the frame, zero when
unused.

*Frames* (charged). The raw little-endian numbers of one vector each, in the order of the entries.

*Envelope* (not charged). What only the transport needs; see `Envelope`.

``train`` and ``evaluate`` travel as envelope + header alone. The frames their entries name travel ahead of them in a
``blocks`` message, each version once per worker, and are found again by version. All other messages bring their frames,
of float32 numbers but for the arrays of ``described`` and for ``sums``, which are int64.

``kept`` (not charged) is what a client keeps between its visits, for guests: workers on other machines, which do not
reach the files that an envelope names. It has the sequence of the task that it belongs to. Where the envelope of a task
names a file to read, a kept goes right ahead of the task; where it names one to write, a kept comes right ahead of the
update, and is on the coordinator's disk before anybody hears of that update. To a guest these names are mere signs that
there is something to read or to write. Every frame of a kept has its checksum.

    worker                         coordinator
    hello                     ->
                              <-   welcome (job), ping
    pong (ready for a task)   ->
                              <-   describe | [blocks] [kept] train | [blocks] [kept] evaluate
    described | [kept] update | score | error   ->
                              <-   collect
    sums | error              ->
                              <-   cancel (with a task's sequence): it is not wanted any more
    pong (with the task's sequence: it is not in hand any more)   ->
                              <-   bye

A hello and its welcome bear no run id (`edge.protocol.messages.NO_RUN`), since a worker learns from the job which run
it serves.

A worker may be sent further tasks before it has answered the first: it has several in hand, does one after another in
the order in which they came, and reads what has come meanwhile after each. A bye ends it at once.

A train whose envelope gives the client a share in the round's mean is answered by an update without vectors: the worker
has added them to its sums of that round (`edge.protocol.fixed_point`), which it gives away, and forgets, when a collect
asks for them; it holds those of one round at a time. An update that cannot be added comes whole. A collect belongs to
no task, and waits its turn behind those in hand.

An error of the kind OutOfMemoryError may cost the worker its place: it is ended, and the envelopes of later tasks tell
the others that it has left.

Whatever does not fit (size, type, range, length against frame, run id, missing or extra field) is a `WireError`: the
message is refused, counted, and logged with its reason, though not more than one a second, and changes nothing. A
worker answers it with an error of the kind WireError, with the message's sequence if that could be read, so that a task
which was not understood fails instead of being waited for. A coordinator passes a stranger's message over, and ends a
worker whose message was refused, as one that answers what it was not asked, or twice; its tasks go on elsewhere. A
worker of ours is ended as a process, one on another machine by a bye that says why. So is a guest whose kept nobody
asked for, holds other vectors than the client keeps where these are known, or is not followed by its update; and one
whose update comes without it. What a frame holds is not checked, unless its entry has a checksum.
"""

from edge.protocol.decode import decode
from edge.protocol.encode import Encoded, encode, encode_header, pack_entries, train_nbytes, update_nbytes
from edge.protocol.envelope import Envelope
from edge.protocol.limits import MAX_HEADER_NBYTES, Buffer
from edge.protocol.message_fields import PROTOCOL
from edge.protocol.tensor_specs import Entries

__all__ = [
    "MAX_HEADER_NBYTES",
    "PROTOCOL",
    "Buffer",
    "Encoded",
    "Entries",
    "Envelope",
    "decode",
    "encode",
    "encode_header",
    "pack_entries",
    "train_nbytes",
    "update_nbytes",
]
