"""Holdfast beside LangGraph, DBOS and the OpenAI Agents SDK: `make bench-peers`.

Every arm does the same work with the same payload, on the same disk, and is durable when it
returns: each peer runs with the settings that its documentation recommends for production, and
syncs to disk as Holdfast does by default. Arms are interleaved, so that whatever else the machine
does happens to all of them. A ratio above 1 says how many times as long the peer takes; below 1,
the peer is faster, and the table says so.
"""
