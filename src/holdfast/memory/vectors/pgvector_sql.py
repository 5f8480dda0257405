"""SQL for the search with pgvector: its tables, beside the table of vectors, and its statements.

The extension may be in any schema and need not be on the search path: all its types, functions and
operators are qualified with its schema, which is `{v}` here.
"""

from __future__ import annotations

from typing import Final

from ...backends.postgres.schema import quote_identifier

PGVECTOR_TABLES: Final = ("codes", "halves", "levels")
FAR_DEVIATIONS: Final = 0.7
"""How many standard deviations from the average count as far."""

# Rows are deleted with their vector. They are short and never stored out of line, because each
# query reads thousands of them.
_TABLES: Final = """\
CREATE TABLE {schema}.memory_levels (
    model bigint PRIMARY KEY REFERENCES {schema}.memory_models ON DELETE CASCADE,
    upto bigint NOT NULL DEFAULT 0, low {v}.vector, mean {v}.vector, high {v}.vector
);
CREATE TABLE {schema}.memory_halves (
    place bigint PRIMARY KEY REFERENCES {schema}.memory_vectors ON DELETE CASCADE,
    model bigint NOT NULL, number bigint NOT NULL, halves {v}.halfvec NOT NULL
) WITH (toast_tuple_target = 8160);
ALTER TABLE {schema}.memory_halves ALTER COLUMN halves SET STORAGE MAIN;
CREATE INDEX memory_halves_by_model ON {schema}.memory_halves (model);
CREATE TABLE {schema}.memory_codes (
    place bigint PRIMARY KEY REFERENCES {schema}.memory_vectors ON DELETE CASCADE,
    model bigint NOT NULL, number bigint NOT NULL, code bit varying NOT NULL
) WITH (toast_tuple_target = 8160);
CREATE INDEX memory_codes_by_model ON {schema}.memory_codes (model, number);
"""

# Checks the columns, not the tables: if the extension is dropped, the columns go with it, but the
# tables stay.
READ_STATE: Final = """\
SELECT (
        SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
        WHERE e.extname = 'vector'
    ), count(*),
    bool_and(has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
        AND has_table_privilege(c.oid, 'UPDATE'))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid
WHERE n.nspname = %s AND NOT a.attisdropped
    AND (c.relname, a.attname) IN (('memory_codes', 'code'), ('memory_halves', 'halves'),
        ('memory_levels', 'mean'))"""

# If anything fails, from a missing file to a missing privilege, the database stays as it was and
# the workers compare the vectors. After a deadlock or serialization failure, the caller retries.
_MAKE: Final = """\
DO $near$ DECLARE at text; BEGIN
IF EXISTS (SELECT FROM pg_available_extensions WHERE name = 'vector') AND (
    SELECT count(*) FROM pg_attribute WHERE NOT attisdropped AND (attrelid, attname) IN (
        (to_regclass('{schema}.memory_codes'), 'code'),
        (to_regclass('{schema}.memory_halves'), 'halves'),
        (to_regclass('{schema}.memory_levels'), 'mean'))) < 3 THEN
CREATE EXTENSION IF NOT EXISTS vector;
SELECT quote_ident(n.nspname) INTO at
    FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
    WHERE e.extname = 'vector' AND string_to_array(e.extversion, '.')::integer[] >= '{{0,7}}';
IF at IS NULL THEN RAISE 'pgvector is older than 0.7'; END IF;
DROP TABLE IF EXISTS {drop};
EXECUTE replace($tables$
{tables}$tables$, '@vector@', at);
END IF;
EXCEPTION WHEN deadlock_detected OR serialization_failure THEN RAISE;
WHEN others THEN RAISE NOTICE 'the server will not compare vectors: %', SQLERRM;
END $near$;
"""


def create_statement(schema: str) -> str:
    """Return one statement that creates the tables, and the extension if it is available.

    If anything fails, it changes nothing.
    """
    named = quote_identifier(schema)
    drop = ", ".join(f"{named}.memory_{name}" for name in PGVECTOR_TABLES)
    return _MAKE.format(schema=named, drop=drop, tables=_TABLES.format(schema=named, v="@vector@"))


_CODE: Final = (
    "({v}.binary_quantize({of} OPERATOR({v}.-) {l}.low)"
    " || {v}.binary_quantize({of} OPERATOR({v}.-) {l}.mean)"
    " || {v}.binary_quantize({of} OPERATOR({v}.-) {l}.high))"
)

# -- filling ---------------------------------------------------------------------------------------

# New vectors by place: the order in which vectors of a namespace become visible.
_BEHIND: Final = """\
SELECT m.model, m.space, m.vectors, l.mean IS NOT NULL, v.place, v.floats
FROM {schema}.memory_spaces s JOIN {schema}.memory_models m USING (space)
LEFT JOIN {schema}.memory_levels l USING (model)
LEFT JOIN LATERAL (
    SELECT place, floats FROM {schema}.memory_vectors v
    WHERE v.model = m.model AND v.place > coalesce(l.upto, 0) ORDER BY place LIMIT %(limit)s
) AS v ON true
WHERE s.tenant = %(tenant)s AND s.id = %(id)s AND m.name = %(model)s ORDER BY v.place"""

# Other processes may do the same, so existing rows are left alone. If a vector is being deleted,
# this waits for the deletion, or skips the vector.
_ADD: Final = (
    """\
INSERT INTO {schema}.memory_levels (model)
SELECT model FROM {schema}.memory_models WHERE model = %(model)s FOR KEY SHARE
ON CONFLICT DO NOTHING""",
    """\
WITH level AS MATERIALIZED (
    SELECT * FROM {schema}.memory_levels WHERE model = %(model)s FOR UPDATE
), there AS MATERIALIZED (
    SELECT v.place, v.model, v.number FROM {schema}.memory_vectors v
    WHERE v.place = ANY(%(places)s::bigint[]) AND v.model = (SELECT model FROM level)
    ORDER BY v.place FOR KEY SHARE
), given AS MATERIALIZED (
    SELECT there.*, (%(floats)s::float8[])[
        (g.row - 1) * %(dimension)s + 1 : g.row * %(dimension)s
    ]::{v}.vector AS floats
    FROM unnest(%(places)s::bigint[]) WITH ORDINALITY AS g (place, row) JOIN there USING (place)
), halves AS (
    INSERT INTO {schema}.memory_halves SELECT place, model, number, floats::{v}.halfvec FROM given
    ON CONFLICT DO NOTHING
), codes AS (
    INSERT INTO {schema}.memory_codes SELECT place, given.model, number, {code}
    FROM given, level l WHERE l.mean IS NOT NULL ON CONFLICT DO NOTHING
)
UPDATE {schema}.memory_levels l SET upto = greatest(l.upto, %(last)s)
FROM level WHERE l.model = level.model""",
)
# Vectors have length 1, so the average of their squares is known.
_LEVEL: Final = (
    """\
UPDATE {schema}.memory_levels l SET low = sample.mean OPERATOR({v}.-) far, mean = sample.mean,
    high = sample.mean OPERATOR({v}.+) far
FROM (
    SELECT mean, array_fill(
        {step} * sqrt(greatest(1 - {v}.vector_norm(mean) ^ 2, 0) / %(dimension)s),
        ARRAY[%(dimension)s::integer]
    )::{v}.vector AS far
    FROM (
        SELECT {v}.avg(halves::{v}.vector) AS mean FROM (
            SELECT halves FROM {schema}.memory_halves WHERE model = %(model)s LIMIT %(sample)s
        ) AS first
    ) AS average WHERE mean IS NOT NULL
) AS sample WHERE l.model = %(model)s AND l.mean IS NULL""",
    """\
INSERT INTO {schema}.memory_codes SELECT place, h.model, h.number, {code_of_half}
FROM {schema}.memory_halves h JOIN {schema}.memory_vectors v USING (place)
JOIN {schema}.memory_levels l ON l.model = h.model
WHERE h.model = %(model)s AND l.mean IS NOT NULL FOR KEY SHARE OF v ON CONFLICT DO NOTHING""",
)
# The server does this itself, but later. Until then it underestimates the number of rows, and sorts
# all of them to find the first ones. Skipped if the server is vacuuming already.
_TIDY: Final = "VACUUM (ANALYZE, SKIP_LOCKED) {schema}.memory_codes"

# -- reading ---------------------------------------------------------------------------------------

NOT_PARALLEL: Final = ", set_config('max_parallel_workers_per_gather', '0', true)"
"""Disables parallel workers: starting them takes longer than reading a hundred thousand codes."""

_ASKED: Final = """\
given AS MATERIALIZED (
    SELECT %(question)s::float8[]::{v}.vector AS floats,
        %(question)s::float8[]::{v}.vector::{v}.halfvec AS halves{{alone}}
),
asked AS MATERIALIZED (
    SELECT {code} AS code, -(l.mean OPERATOR({v}.<#>) given.floats) AS common
    FROM given, {schema}.memory_levels l WHERE l.model = %(model)s
)"""
_APART: Final = "c.code OPERATOR({v}.<~>) (SELECT code FROM asked)"
_NEAREST: Final = """\
WITH {asked}, bound AS MATERIALIZED (
    SELECT CASE WHEN %(share)s::float8 IS NULL THEN 'infinity'
        ELSE percentile_disc(%(share)s) WITHIN GROUP (ORDER BY apart) END AS most
    FROM (
        SELECT {apart} AS apart FROM {schema}.memory_codes c WHERE c.model = %(model)s
        ORDER BY c.number LIMIT %(sample)s
    ) AS first
), near AS MATERIALIZED (
    SELECT place FROM {schema}.memory_codes c
    WHERE c.model = %(model)s AND {apart} <= (SELECT most FROM bound)
    ORDER BY {apart} LIMIT %(close)s
), {rest}"""
_NARROW: Final = """\
WITH {asked}, near AS MATERIALIZED (
    SELECT c.place FROM {schema}.memory_codes c
    JOIN {schema}.memory_docs d ON d.space = %(space)s AND d.number = c.number
    WHERE c.model = %(model)s AND {{condition}} ORDER BY {apart} LIMIT %(close)s
), {rest}"""
_CLOSER: Final = """\
closer AS MATERIALIZED (
    SELECT number, halves OPERATOR({v}.<#>) (SELECT halves FROM given) AS apart
    FROM {schema}.memory_halves WHERE place = ANY(ARRAY(SELECT place FROM near))
    ORDER BY apart LIMIT %(chosen)s
), {shown}
SELECT (SELECT count(*) FROM near), common, body, apart
FROM asked LEFT JOIN shown ON true ORDER BY apart"""
_AMONG_ALL: Final = """\
WITH given AS MATERIALIZED (SELECT %(question)s::float8[]::{v}.vector::{v}.halfvec AS halves),
closer AS MATERIALIZED (
    SELECT number, halves OPERATOR({v}.<#>) (SELECT halves FROM given) AS apart
    FROM {schema}.memory_halves WHERE model = %(model)s
), {shown}
SELECT all_.count, all_.common, body, apart
FROM (SELECT count(*), -avg(apart) AS common FROM closer) AS all_
LEFT JOIN shown ON true ORDER BY apart"""
_SHOWN: Final = """\
shown AS (
    SELECT c.apart, b.body FROM (
        SELECT c.number, c.apart FROM closer c
        JOIN {schema}.memory_docs d ON d.space = %(space)s AND d.number = c.number
        WHERE {{condition}} ORDER BY c.apart LIMIT %(limit)s
    ) AS c JOIN {schema}.memory_bodies b ON b.space = %(space)s AND b.number = c.number
)"""


class VectorStatements:
    """Every statement, with both schemas filled in.

    `SQLDialect.build_condition` fills in a `{condition}`, and `NOT_PARALLEL` or "" an `{alone}`.
    """

    def __init__(self, schema: str, at: str) -> None:
        names = {"schema": quote_identifier(schema), "v": '"' + at.replace('"', '""') + '"'}

        def named(text: str, **parts: str) -> str:
            return text.format(**names, **parts)

        code = named(_CODE, of="given.floats", l="l")
        code_of_half = named(_CODE, of=f"h.halves::{names['v']}.vector", l="l")
        self.behind = named(_BEHIND)
        self.add = [named(text, code=code) for text in _ADD]
        self.level = [
            named(text, code_of_half=code_of_half, step=str(FAR_DEVIATIONS)) for text in _LEVEL
        ]
        self.tidy = named(_TIDY)
        shown = named(_SHOWN)
        parts = {
            "asked": named(_ASKED, code=code),
            "apart": named(_APART),
            "rest": named(_CLOSER, shown=shown),
        }
        self.nearest = named(_NEAREST, **parts)
        self.narrow = named(_NARROW, **parts)
        self.among_all = named(_AMONG_ALL, shown=shown)
