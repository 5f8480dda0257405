"""SQL for the PostgreSQL index: tables and statements.

Each statement is a transaction of its own and needs no session state, so a pooler may use another
connection for each. Lexemes have the number of their namespace as a prefix ("7_dispute"), so a
namespace has its own posting lists.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ...backends.postgres.arrays import bigint_array, text_array
from ...backends.postgres.schema import quote_identifier
from ..text.words import split_words
from ..vectors.pgvector_sql import PGVECTOR_TABLES as NEAR_NAMES
from ..vectors.pgvector_sql import create_statement as create_pgvector
from .candidates import LEADING_DOCS, LENGTH_OFFSET, LONG_TEXT_CANDIDATES, SHORT_TERMS
from .sql import SQLDialect

FORMAT: Final = 10
"""Tables of another format are dropped and rebuilt from the streams."""
WORK_DOCS: Final = LEADING_DOCS

# The bodies are in a table of their own, so that the searched columns fit on few pages. New words
# wait in a list of up to 128 kB: that nearly halves the work of writing, and costs a query only
# those few pages.
_TABLES: Final = """\
CREATE TABLE {schema}.memory_models (
    model bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, space integer NOT NULL,
    name text COLLATE "C" NOT NULL, filling bytea NOT NULL, vectors bigint NOT NULL DEFAULT 0,
    UNIQUE (space, name)
);
CREATE TABLE {schema}.memory_vectors (
    place bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, space integer NOT NULL,
    model bigint NOT NULL, number bigint NOT NULL, floats bytea NOT NULL, UNIQUE (model, number)
);
ALTER TABLE {schema}.memory_vectors ALTER COLUMN floats SET STORAGE MAIN,
    SET (toast_tuple_target = 8160);
CREATE INDEX memory_vectors_by_place ON {schema}.memory_vectors (model, place);
CREATE INDEX memory_vectors_by_number ON {schema}.memory_vectors (space, number);
CREATE TABLE {schema}.memory_spaces (
    space integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant text COLLATE "C",
    id text COLLATE "C",
    incarnation bytea NOT NULL,
    version bigint NOT NULL,
    hash bytea NOT NULL,
    memories bigint NOT NULL DEFAULT 0,
    terms bigint NOT NULL DEFAULT 0,
    puts bigint NOT NULL DEFAULT 0,
    UNIQUE (tenant, id)
) WITH (fillfactor = 50);
CREATE TABLE {schema}.memory_docs (
    space integer NOT NULL,
    number bigint NOT NULL,
    at double precision NOT NULL,
    first_at double precision NOT NULL,
    expires_at double precision,
    valid_from double precision,
    valid_until double precision,
    length integer NOT NULL,
    digest bigint NOT NULL,
    source text COLLATE "C",
    sources jsonb,
    author text COLLATE "C" NOT NULL,
    subject text COLLATE "C",
    tags jsonb NOT NULL,
    keys bigint[] NOT NULL,
    words tsvector NOT NULL,
    PRIMARY KEY (space, number)
);
CREATE TABLE {schema}.memory_bodies (
    space integer NOT NULL, number bigint NOT NULL, body bytea NOT NULL, PRIMARY KEY (space, number)
) WITH (fillfactor = 90);
CREATE INDEX memory_docs_by_source ON {schema}.memory_docs (space, source, first_at, number)
    WHERE source IS NOT NULL;
CREATE INDEX memory_docs_by_sources ON {schema}.memory_docs (space) WHERE sources IS NOT NULL;
CREATE INDEX memory_docs_by_end ON {schema}.memory_docs (space, expires_at)
    WHERE expires_at IS NOT NULL;
CREATE INDEX memory_docs_by_word ON {schema}.memory_docs USING gin (words)
    WITH (fastupdate = on, gin_pending_list_limit = 128);
CREATE TABLE {schema}.memory_ids (
    space integer NOT NULL, id text COLLATE "C" NOT NULL, number bigint NOT NULL,
    PRIMARY KEY (space, id)
);
CREATE TABLE {schema}.memory_keys (
    space integer NOT NULL, key bigint NOT NULL, number bigint NOT NULL,
    PRIMARY KEY (space, key, number)
);
CREATE TABLE {schema}.memory_terms (
    term text COLLATE "C" PRIMARY KEY, count integer NOT NULL
) WITH (fillfactor = 80);
CREATE TABLE {schema}.memory_format (format integer NOT NULL);
INSERT INTO {schema}.memory_format VALUES ({format});
"""
NAMES: Final = (
    *NEAR_NAMES,
    "format",
    "spaces",
    "docs",
    "bodies",
    "ids",
    "keys",
    "terms",
    "models",
    "vectors",
)

TABLES_EXIST: Final = (
    "SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE n.nspname = %s AND c.relname = 'memory_format')"
)


def table_statements(schema: str) -> str:
    """Return the statements that create the tables."""
    return _TABLES.format(schema=quote_identifier(schema), format=FORMAT)


def setup_script(schema: str) -> str:
    """Return the script that an administrator runs if Holdfast may not create these tables."""
    named = quote_identifier(schema)
    old = (
        f"IF ({READ_FORMAT.format(schema=named)}) <> {FORMAT} THEN\n{drop_statements(named)}END IF;"
    )
    return (
        "-- The memory index. It is derived from the store and can be dropped at any time.\n"
        f"BEGIN;\nCREATE SCHEMA IF NOT EXISTS {named};\n"
        f"DO $holdfast$ BEGIN IF to_regclass('{named}.memory_format') IS NOT NULL THEN\n"
        f"{old}\nEND IF; END $holdfast$;\n"
        f"DO $holdfast$ BEGIN IF to_regclass('{named}.memory_format') IS NULL THEN\n"
        f"{table_statements(schema)}END IF; END $holdfast$;\n"
        "-- With the extension vector (pgvector 0.7+), the server compares vectors itself:\n"
        f"{create_pgvector(schema)}COMMIT;\n"
    )


def drop_statements(named: str) -> str:
    return "".join(f"DROP TABLE IF EXISTS {named}.memory_{name};\n" for name in NAMES)


READ_FORMAT: Final = "SELECT format FROM {schema}.memory_format"


def _fill(template: str, **parts: object) -> str:
    """Fill in some of the names of a template, and leave the others."""
    for name, part in parts.items():
        template = template.replace(f"{{{name}}}", str(part))
    return template


# -- writing ---------------------------------------------------------------------------------------

# The process that finds the expected position and locks it does the write. A process that waited
# for the lock finds the row changed and does nothing, even if another process only added vectors or
# removed memories. All parts of the statement see the tables as they were before it.
_START: Final = """\
place AS (
    INSERT INTO {schema}.memory_spaces (tenant, id, incarnation, version, hash, memories, terms)
    VALUES (%(tenant)s, %(id)s, %(incarnation)s, %(version)s, %(hash)s, %(memories)s, %(lengths)s)
    ON CONFLICT (tenant, id) DO NOTHING RETURNING space
)"""
_CONTINUE: Final = """\
place AS (
    SELECT space FROM {schema}.memory_spaces
    WHERE tenant = %(tenant)s AND id = %(id)s AND incarnation = %(incarnation)s
        AND version = %(before)s AND hash = %(before_hash)s
        AND puts = (
            SELECT puts FROM {schema}.memory_spaces WHERE tenant = %(tenant)s AND id = %(id)s
        ) FOR UPDATE
)"""
_WRITE: Final = """\
WITH {place}, old AS (
    SELECT number, length, digest, keys, words FROM {schema}.memory_docs d JOIN place USING (space)
    WHERE number = ANY(%(touched)s::bigint[])
), given AS MATERIALIZED (
    SELECT space, number, at, first_at, expires_at, valid_from, valid_until, length, digest, source,
        sources::jsonb AS sources, author, subject, tags::jsonb AS tags,
        string_to_array(keys, ' ')::bigint[] AS keys,
        array_to_tsvector(
            string_to_array(ltrim(replace(words, ' ', ' ' || space || '_')), ' ')
        ) AS words, body
    FROM place, unnest(
        %(number)s::bigint[], %(at)s::float8[], %(first_at)s::float8[], %(expires_at)s::float8[],
        %(valid_from)s::float8[], %(valid_until)s::float8[],
        %(length)s::integer[], %(digest)s::bigint[], %(source)s::text[], %(sources)s::text[],
        %(author)s::text[], %(subject)s::text[], %(tags)s::text[], %(keys)s::text[],
        %(words)s::text[], %(body)s::bytea[]
    ) AS given (
        number, at, first_at, expires_at, valid_from, valid_until, length, digest, source, sources,
        author, subject, tags, keys, words, body
    )
), gone AS (
    DELETE FROM {schema}.memory_docs d USING place
    WHERE d.space = place.space AND number = ANY(%(gone)s::bigint[])
), gone_bodies AS (
    DELETE FROM {schema}.memory_bodies d USING place
    WHERE d.space = place.space AND number = ANY(%(gone)s::bigint[])
), gone_vectors AS (
    DELETE FROM {schema}.memory_vectors v USING place, (
        SELECT number FROM old LEFT JOIN given USING (number)
        WHERE given.digest IS DISTINCT FROM old.digest
    ) AS o WHERE v.space = place.space AND v.number = o.number RETURNING v.model
), fewer_vectors AS (
    UPDATE {schema}.memory_models m SET vectors = vectors - gone.count
    FROM (SELECT model, count(*) FROM gone_vectors GROUP BY model) AS gone
    WHERE m.model = gone.model
), put AS (
    INSERT INTO {schema}.memory_docs AS d
    SELECT space, number, at, first_at, expires_at, valid_from, valid_until, length, digest,
        source, sources, author, subject, tags, keys, words
    FROM given
    ON CONFLICT (space, number) DO UPDATE SET {update}
    WHERE ({changed}) IS DISTINCT FROM ({changes})
), put_bodies AS (
    INSERT INTO {schema}.memory_bodies SELECT space, number, body FROM given
    ON CONFLICT (space, number) DO UPDATE SET body = EXCLUDED.body
), put_ids AS (
    INSERT INTO {schema}.memory_ids
    SELECT space, name, named
    FROM place, unnest(%(names)s::text[], %(named)s::bigint[]) AS given (name, named)
    ON CONFLICT DO NOTHING
), old_keys AS (
    SELECT unnest(keys) AS key, number FROM old
), new_keys AS (
    SELECT unnest(keys) AS key, number FROM given
), gone_keys AS (
    DELETE FROM {schema}.memory_keys k
    USING place, (SELECT * FROM old_keys EXCEPT SELECT * FROM new_keys) AS o
    WHERE k.space = place.space AND k.key = o.key AND k.number = o.number
), put_keys AS (
    INSERT INTO {schema}.memory_keys SELECT space, key, number FROM place, new_keys
    ON CONFLICT DO NOTHING
), changed AS (
    SELECT term, sum(more)::integer AS more FROM (
        SELECT unnest(tsvector_to_array(words)) AS term, -1 AS more FROM old
        UNION ALL SELECT unnest(tsvector_to_array(words)), 1 FROM given
    ) AS both_sides GROUP BY term HAVING sum(more) <> 0
), more_often AS (
    INSERT INTO {schema}.memory_terms AS t SELECT term, more FROM changed WHERE more > 0
    ON CONFLICT (term) DO UPDATE SET count = t.count + EXCLUDED.count
), less_often AS (
    UPDATE {schema}.memory_terms t SET count = t.count + more FROM changed
    WHERE t.term = changed.term AND more < 0 AND t.count + more > 0
), no_more AS (
    DELETE FROM {schema}.memory_terms t USING changed
    WHERE t.term = changed.term AND more < 0 AND t.count + more <= 0
){moved}"""
# What a server crash loses is recovered from the stream, so no commit waits for the disk.
_ASYNC_COMMIT: Final = "set_config('synchronous_commit', 'off', true)"
# A statement cannot update a row that it inserted itself, so the two cases end differently.
_MOVED: Final = """
UPDATE {schema}.memory_spaces s SET version = %(version)s, hash = %(hash)s, puts = puts + 1,
    memories = memories + (SELECT count(*) FROM given) - (SELECT count(*) FROM old),
    terms = terms + (SELECT coalesce(sum(length), 0) FROM given)
        - (SELECT coalesce(sum(length), 0) FROM old)
FROM place WHERE s.space = place.space RETURNING {async_commit}"""
_COLUMNS: Final = split_words(
    "at first_at expires_at valid_from valid_until length digest source sources author subject tags"
    " keys words"
)
_PUT: Final = _fill(
    _WRITE,
    update=", ".join(f"{name} = EXCLUDED.{name}" for name in _COLUMNS),
    changed=", ".join(f"d.{name}" for name in _COLUMNS),
    changes=", ".join(f"EXCLUDED.{name}" for name in _COLUMNS),
)
START: Final = _fill(_PUT, place=_START, moved=f"\nSELECT {_ASYNC_COMMIT} FROM place")
ADVANCE: Final = _fill(_PUT, place=_CONTINUE, moved=_fill(_MOVED, async_commit=_ASYNC_COMMIT))

# The namespace is locked and marked, so that a `write` that waits for this one starts over: it
# could not see these vectors and would leave them behind. The lock also makes the places of a model
# visible in order.
PUT_VECTORS: Final = (
    "UPDATE {schema}.memory_spaces SET puts = puts + 1 WHERE tenant = %(tenant)s AND id = %(id)s",
    """\
INSERT INTO {schema}.memory_models (space, name, filling)
SELECT space, %(model)s, %(filling)s FROM {schema}.memory_spaces
WHERE tenant = %(tenant)s AND id = %(id)s ON CONFLICT DO NOTHING""",
    """\
WITH kept AS (
    INSERT INTO {schema}.memory_vectors (space, model, number, floats)
    SELECT b.space, {model}, b.number, given.floats
    FROM unnest(%(numbers)s::bigint[], %(bodies)s::bytea[], %(floats)s::bytea[])
        AS given (number, body, floats)
    JOIN {schema}.memory_bodies b
        ON b.space = {space} AND b.number = given.number AND b.body = given.body
    ORDER BY b.number ON CONFLICT DO NOTHING RETURNING 1
)
UPDATE {schema}.memory_models SET vectors = vectors + (SELECT count(*) FROM kept)
WHERE model = {model}""",
    """\
WITH old AS (
    DELETE FROM {schema}.memory_models WHERE model IN (
        SELECT model FROM {schema}.memory_models WHERE space = {space}
        ORDER BY model DESC OFFSET %(models)s
    ) RETURNING model
)
DELETE FROM {schema}.memory_vectors v USING old WHERE v.model = old.model""",
)

# -- reading ---------------------------------------------------------------------------------------

# A lexeme quoted for a query, so that nothing in it is an operator.
_QUOTED: Final = (
    "('''' || replace(replace(lexeme, chr(92), repeat(chr(92), 2)), '''', '''''') || '''')"
)
# Like `plan_search` in `candidates.py`: the rarer terms lead, and the others are looked up in their
# candidates. `LATERAL` queries the index for one term after the other, so that each match has its
# worth. `marked` counts, for each group of markers, the memories with one of them and, in its last
# row, the memories by none of the excluded authors. The words alone identify the namespace. The
# sum `space + 0` checks it once more, to be sure. No index has that sum: with an index, PostgreSQL
# would read the whole namespace for each term, only to intersect it with the few rows that have
# the term.
_SEARCH: Final = """\
WITH place AS (
    SELECT space, memories, terms, terms::float8 / greatest(memories, 1) AS average
    FROM {schema}.memory_spaces WHERE tenant = %(tenant)s AND id = %(id)s
), marked AS (
    SELECT '(' || string_agg({quoted}, '|') || ')' AS words,
        coalesce(sum(count), 0)::bigint AS count
    FROM (
        SELECT given.which, t.term AS lexeme, t.count
        FROM unnest(%(markers)s::text[], %(groups)s::int[]) AS given (marker, which)
        LEFT JOIN {schema}.memory_terms t
            ON t.term = (SELECT space FROM place) || '_' || given.marker
    ) AS known GROUP BY which UNION ALL
    SELECT '', (SELECT memories FROM place) - coalesce(sum(t.count), 0)::bigint
    FROM unnest(%(others)s::text[]) AS given (marker)
    JOIN {schema}.memory_terms t ON t.term = (SELECT space FROM place) || '_' || given.marker
), asked AS (
    SELECT given.term, given.weight, t.term AS lexeme, t.count
    FROM unnest(%(terms)s::text[], %(weights)s::float8[]) AS given (term, weight)
    JOIN {schema}.memory_terms t ON t.term = (SELECT space FROM place) || '_' || given.term
), valued AS (
    SELECT term, count, least(count, (SELECT min(count) FROM marked)) AS brings, {quoted} AS word,
        greatest(round(
            1e6 * weight * ln(1 + (memories - count + 0.5::float8) / (count + 0.5::float8))
        )::bigint, 1) AS worth
    FROM place, asked ORDER BY worth DESC, term COLLATE "C" DESC LIMIT %(most_terms)s
), planned AS (
    SELECT word, worth, brought <= %(work)s OR brought - brings < %(limit)s AS leads
    FROM (
        SELECT *, sum(brings) OVER (ORDER BY count, term COLLATE "C") AS brought FROM valued
    ) AS counted
), chosen AS MATERIALIZED (
    SELECT (
        word || CASE WHEN leads THEN ''
            ELSE (SELECT '&(' || string_agg(word, '|') || ')' FROM planned WHERE leads) END
        || coalesce((SELECT string_agg('&' || words, '') FROM marked WHERE words <> ''), '')
    )::tsquery AS query, worth
    FROM planned WHERE NOT EXISTS (SELECT FROM marked WHERE words IS NULL)
), found AS (
    SELECT number, CASE WHEN (SELECT average FROM place) <= {short} THEN sum(worth)
        ELSE sum(worth) / ({offset} + length / (SELECT average FROM place)) END AS score
    FROM chosen, LATERAL (
        SELECT number, length FROM {schema}.memory_docs
        WHERE words @@ query AND space + 0 = (SELECT space FROM place) AND {{condition}} OFFSET 0
    ) AS matching GROUP BY number, length ORDER BY score DESC, number DESC
    LIMIT %(limit)s * CASE WHEN (SELECT average FROM place) <= {short} THEN 1 ELSE {more} END
)
SELECT memories, terms, (SELECT array_agg(term) FROM asked), (SELECT array_agg(count) FROM asked),
    NULL::bytea, NULL::float8
FROM place UNION ALL
SELECT found.number, NULL, NULL, NULL, body, score FROM found JOIN {schema}.memory_bodies b
ON b.space = (SELECT space FROM place) AND b.number = found.number"""

SEARCH: Final = _fill(
    _SEARCH, quoted=_QUOTED, short=SHORT_TERMS, offset=LENGTH_OFFSET, more=LONG_TEXT_CANDIDATES
)
_VECTOR_PAGE: Final = """\
SELECT m.filling, v.place, v.number, v.floats FROM {schema}.memory_models m LEFT JOIN LATERAL (
    SELECT place, number, floats FROM {schema}.memory_vectors v
    WHERE v.model = m.model AND place > %(after)s ORDER BY place LIMIT %(limit)s
) AS v ON true WHERE m.model = {model} ORDER BY v.place"""

_SIDE: Final = """\
(SELECT {later} AS later, number FROM {schema}.memory_docs
WHERE space = {space} AND source = given.source
    AND (first_at, number) {than} (given.at, given.number) AND {{condition}}
ORDER BY first_at {order}, number {order} LIMIT %(reach)s)"""
_AROUND: Final = """\
WITH beside AS (
    SELECT place, later, near.number
    FROM unnest(%(sources)s::text[], %(ats)s::float8[], %(numbers)s::bigint[])
        WITH ORDINALITY AS given (source, at, number, place),
    LATERAL ({before} UNION ALL {after}) AS near
)
SELECT place, later, body FROM beside
JOIN {schema}.memory_bodies b ON b.space = {space} AND b.number = beside.number"""
AROUND: Final = _fill(
    _AROUND,
    before=_fill(_SIDE, later="false", than="<", order="DESC"),
    after=_fill(_SIDE, later="true", than=">", order="ASC"),
)

# -- clearing --------------------------------------------------------------------------------------

# The namespace loses its name first, atomically; then its rows are deleted in parts. If the process
# dies in between, the next `clear` finishes the job.
UNNAME: Final = """\
UPDATE {schema}.memory_spaces SET tenant = NULL, id = NULL
WHERE tenant = %(tenant)s AND id = %(id)s AND incarnation = %(incarnation)s
    AND version = %(version)s AND hash = %(hash)s"""
# One namespace takes the name of another, in one transaction: until then the old one answers.
REPLACE: Final = (
    """\
UPDATE {schema}.memory_spaces s SET tenant = NULL, id = NULL
WHERE tenant = %(tenant)s AND id = %(id)s AND EXISTS (
    SELECT FROM {schema}.memory_spaces b WHERE b.tenant = %(by_tenant)s AND b.id = %(by_id)s
    AND (b.incarnation <> s.incarnation OR b.version >= s.version))""",
    """\
UPDATE {schema}.memory_spaces SET tenant = %(tenant)s, id = %(id)s
WHERE tenant = %(by_tenant)s AND id = %(by_id)s
AND NOT EXISTS (SELECT FROM {schema}.memory_spaces WHERE tenant = %(tenant)s AND id = %(id)s)""",
)
UNNAMED: Final = "SELECT space FROM {schema}.memory_spaces WHERE tenant IS NULL AND id IS NULL"
_SOME: Final = """\
DELETE FROM {schema}.memory_{table} WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM {schema}.memory_{table} WHERE {those} LIMIT %(limit)s)) RETURNING 1"""
# "`" is the character after "_", so the terms of namespace 7 are between "7_" and "7`".
_THOSE: Final = {"terms": "term >= %(space)s::text || '_' AND term < %(space)s::text || '`'"}
CLEAR: Final = [
    _fill(_SOME, table=table, those=_THOSE.get(table, "space = %(space)s"))
    for table in ("docs", "bodies", "ids", "keys", "terms", "vectors", "models", "spaces")
]


def build_dialect(schema: str) -> SQLDialect:
    """Return the dialect for a quoted schema."""
    return SQLDialect(
        schema=schema,
        docs=f"{schema}.memory_docs d JOIN {schema}.memory_bodies b USING (space, number)",
        bodies=f"{schema}.memory_bodies",
        author="author",
        subject="subject",
        has_source="sources ? %(source)s",
        further_sources="jsonb_array_elements_text(sources) FROM living WHERE sources IS NOT NULL",
        vector_page=_VECTOR_PAGE,
        is_among=lambda name, kind: f"= ANY(%({name})s::{kind}[])",
        tag_conditions=lambda tags: (
            ["tags @> %(tags)s::jsonb"],
            {"tags": msgspec.json.encode(tags).decode()},
        ),
        pack_texts=text_array,
        pack_keys=lambda keys: bigint_array(int(key, 16) for key in keys),
        finish=str,
    )
