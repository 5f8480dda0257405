"""Tests of odd ids that break careless backends: each must be a stream of its own."""

from __future__ import annotations

from ..backends import Backend, HeadFields
from .build import (
    KIND,
    TENANT,
    StreamTracker,
    all_due,
    all_heads,
    assert_listed,
    at,
    bodies,
    ids,
    key,
    must_head,
    read_all,
    stored,
    timeless,
)

ODD = [
    # quotes, SQL and its wildcards
    "'", '"', "`", "''", "a'b", "'; DROP TABLE streams; --", "' OR '1'='1", "%", "_", "a%",
    "a_", "\\", "\\%", "?", "?1", ":id", "$1", "--",
    # paths, URLs and globs
    ".", "..", "../x", "../../etc/passwd", "/", "//", "/etc/passwd", "a/b", "a//b", "a/./b",
    "a\\b", "C:\\x", "~", "~root", "CON", "nul.txt", "x.", "a%2Fb", "%2e%2e", "%00", "*",
    "a*", "[a]", "[!a]", "{a,b}", "{}", "{a}", "{{a}}", "#", "a#b", "&", "a=b", "a?b",
    "file:x", "-", "-rf", "--help", ".hidden", ".lock", "a.jsonl", "$HOME", "$(x)", "`x`",
    "|", "a|b", ";", "<x>", "!",
    # spaces and invisible characters
    " ", "  ", "a", " a", "a ", "a  ", "\t", "\n", "\r", "\r\n", "a\nb", "\x01", "\x1b[31m",
    "\x1f", "\x7f", "\x80", "\x85", "\u00a0", "\u200b", "a\u200b", "\u2028", "\ufeff",
    "\ufeffa", "\u202e", "\ufffe", "\uffff", "\U0010ffff",
    # case, normal forms and look-alikes: one code point apart is another stream
    "A", "I", "i", "İ", "\u0131", "ß", "SS", "ss", "Ǆ", "ǅ", "ǆ", "\u00e9", "e\u0301",
    "\u212b", "\u00c5", "A\u030a", "ﬁ", "fi", "\uff11", "1", "01", "1.0", "1e0", "\u0430",
    "o", "\u03bf",
    # beyond the Basic Multilingual Plane, combined emoji, right to left
    "😀", "👩‍👩‍👧", "👍🏽", "🇩🇪", "\U0001d4b3", "שלום", "مرحبا", "漢字",
    # words that mean something elsewhere
    "null", "None", "true", "0", "-1", "NaN", "undefined", "constructor", "__proto__",
    '{"a":1}', "[]", "MIN", "\\u0041", "\\x00",
    # at the limit of 512 bytes, and differing only at the very end
    "x" * 512, "x" * 511 + "y", "x" * 511, "😀" * 128, "😀" * 127 + "😁", "\n" * 512, "/" * 512,
    "." * 512, "%" * 512,
]  # fmt: skip


def _fields(place: int) -> HeadFields:
    return HeadFields(status="odd", due_at=float(place))


def _fill(backend: Backend, trackers: list[StreamTracker]) -> None:
    """Append twice to each stream; the second append has the same indexed id everywhere."""
    answers = backend.append(
        [
            tracker.follow(tracker.next(_text(tracker), fields=_fields(n)))
            for n, tracker in enumerate(trackers)
        ]
    )
    assert stored(answers) == [(1, 1, False)] * len(trackers)
    answers = backend.append(
        [tracker.follow(tracker.next(b"second", id=b"same", indexed=True)) for tracker in trackers]
    )
    assert stored(answers) == [(2, 2, False)] * len(trackers)


def _text(tracker: StreamTracker) -> bytes:
    return repr(tuple(tracker.stream)).encode()


class NameTests:
    odd_names = ODD
    """All odd ids. Override this only for a very slow server."""

    def test_odd_ids_are_streams_of_their_own_to_read_and_head(self, backend: Backend) -> None:
        assert len(set(self.odd_names)) == len(self.odd_names)
        trackers = [StreamTracker(name) for name in self.odd_names]
        _fill(backend, trackers)
        for place, tracker in enumerate(trackers):
            assert bodies(read_all(backend, tracker.stream)) == [_text(tracker), b"second"], (
                tracker.stream
            )
            assert timeless(backend.head(tracker.stream)) == at(tracker, _fields(place)), (
                tracker.stream
            )

    def test_odd_ids_are_listed_as_they_are_and_in_order(self, backend: Backend) -> None:
        _fill(backend, [StreamTracker(name) for name in self.odd_names])
        in_order = sorted(self.odd_names, key=str.encode)
        assert ids(all_heads(backend)) == in_order
        assert ids(all_heads(backend, status="odd", limit=7)) == in_order
        assert ids(all_due(backend)) == self.odd_names
        for name in self.odd_names:
            behind = in_order[in_order.index(name) + 1 :]
            assert (
                ids(backend.heads(tenant=TENANT, kind=KIND, after=name, limit=3)) == behind[:3]
            ), name

    def test_odd_ids_break_ties_of_due_in_order(self, backend: Backend) -> None:
        backend.append(
            [StreamTracker(name).next(fields=HeadFields(due_at=1.0)) for name in self.odd_names]
        )
        assert ids(all_due(backend, limit=9)) == sorted(self.odd_names, key=str.encode)

    def test_deleting_one_odd_id_leaves_all_others(self, backend: Backend) -> None:
        trackers = [StreamTracker(name) for name in self.odd_names]
        _fill(backend, trackers)
        gone, left = trackers[::2], trackers[1::2]
        for tracker in gone:
            assert backend.delete(tracker.stream, expected=must_head(backend, tracker.stream)), (
                tracker.stream
            )
        assert [
            tracker.stream.id
            for tracker in gone
            if backend.head(tracker.stream) or backend.read(tracker.stream)
        ] == []
        for tracker in left:
            assert bodies(read_all(backend, tracker.stream)) == [_text(tracker), b"second"], (
                tracker.stream
            )
        assert ids(all_heads(backend)) == sorted(
            (tracker.stream.id for tracker in left), key=str.encode
        )
        assert ids(all_due(backend)) == [tracker.stream.id for tracker in left]

    def test_an_odd_id_conflicts_only_with_itself(self, backend: Backend) -> None:
        trackers = [StreamTracker(name) for name in self.odd_names]
        _fill(backend, trackers[::2])
        answers = backend.append([StreamTracker(name).next(b"x") for name in self.odd_names])
        refused = [not hasattr(answer, "first") for answer in answers]
        assert refused == [place % 2 == 0 for place in range(len(self.odd_names))]

    def test_odd_tenants_are_kept_apart(self, backend: Backend) -> None:
        tenants = [name for name in self.odd_names if len(name.encode()) <= 100]
        trackers = [StreamTracker(key("s", tenant=tenant)) for tenant in tenants]
        _fill(backend, trackers)
        for place, tracker in enumerate(trackers):
            tenant = tracker.stream.tenant
            assert bodies(read_all(backend, tracker.stream)) == [_text(tracker), b"second"], tenant
            for listed in (all_heads(backend, tenant=tenant), all_due(backend, tenant=tenant)):
                assert_listed(listed, [at(tracker, _fields(place))])

    def test_separators_in_names_do_not_mix_up_streams(self, backend: Backend) -> None:
        pairs = []
        for mark in (
            "/",
            ":",
            "|",
            "#",
            ".",
            "-",
            "_",
            "\x1f",
            "\x01",
            "%2F",
            "::",
            "\\",
            " ",
            ",",
        ):
            pairs += [
                (f"a{mark}{KIND}", f"b{mark}1"),
                ("a", f"{KIND}{mark}b{mark}1"),
                (f"a{mark}{KIND}{mark}b", "1"),
            ]
        trackers = [StreamTracker(key(name, tenant=tenant)) for tenant, name in sorted(set(pairs))]
        _fill(backend, trackers)
        for tracker in trackers:
            assert bodies(read_all(backend, tracker.stream)) == [_text(tracker), b"second"], (
                tracker.stream
            )
            listed = ids(all_heads(backend, tenant=tracker.stream.tenant))
            wanted = {
                other.stream.id
                for other in trackers
                if other.stream.tenant == tracker.stream.tenant
            }
            assert listed == sorted(wanted, key=str.encode)
