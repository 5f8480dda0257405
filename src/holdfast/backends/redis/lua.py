"""The Lua scripts: append, delete and setup. Redis runs each one atomically.

Lua in Redis has no rollback. So every script reads first and writes last: before a command that
could fail on a key of another type, it reads that key. The first write of an append is the one
that Redis refuses if it is full, a replica, or cannot save; if it succeeds, Redis accepts the other
writes of the script too.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final


class LuaScript:
    """The text of a script, and its SHA-1, under which the server caches it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha1 = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def call(
        self, keys: list[bytes], arguments: list[Any], *, send_text: bool = False
    ) -> list[Any]:
        """Return the command that runs the script, by its SHA-1 or with its text."""
        first = ["EVAL", self.text] if send_text else ["EVALSHA", self.sha1]
        return [*first, len(keys), *keys, *arguments]


OPEN: Final = LuaScript("""
-- Return schema and epoch of the store; create it if it does not exist.
-- KEYS: store. ARGV: schema, epoch.
if redis.call('EXISTS', KEYS[1]) == 0 then
  local created = redis.pcall('HSET', KEYS[1], 'schema', ARGV[1], 'epoch', ARGV[2])
  if type(created) == 'table' and created.err then return created end
end
return redis.call('HMGET', KEYS[1], 'schema', 'epoch')
""")

PROBE: Final = LuaScript("""
-- Return the commands of the other scripts that fail, each with its error. KEYS: a key to try on.
local key = KEYS[1]
local commands = {
  {'UNLINK', key}, {'INCR', key}, {'GET', key}, {'UNLINK', key},
  {'RPUSH', key, 'x'}, {'LLEN', key}, {'LINDEX', key, 0}, {'LTRIM', key, 0, 0}, {'UNLINK', key},
  {'HSET', key, 'x', 'x'}, {'HGET', key, 'x'}, {'HMGET', key, 'x'}, {'HLEN', key},
  {'HDEL', key, 'y'}, {'UNLINK', key},
  {'ZADD', key, 0, 'x'}, {'ZREM', key, 'y'}, {'ZCARD', key}, {'UNLINK', key},
  {'SADD', key, 'x'}, {'SCARD', key}, {'SISMEMBER', key, 'x'}, {'UNLINK', key}, {'TIME'},
}
local refused = {}
for _, command in ipairs(commands) do
  local answer = redis.pcall(unpack(command))
  if type(answer) == 'table' and answer.err then
    refused[#refused + 1] = command[1]
    refused[#refused + 1] = answer.err
  end
end
return refused
""")

_LOST = """
-- Return whether the server has lost writes that it acknowledged to this client.
local function lost(counter, seen)
  return tonumber(redis.call('GET', counter) or '0') < tonumber(seen)
end
"""

_SET_FIELDS = """
local function encode_status(status, id)
  return 's' .. string.format('%08d', #status) .. status .. id
end

-- Set the fields, from ARGV[a.field] on, and move the stream in the index. `status` and `due` are
-- the old ones.
local function set_fields(a, status, due)
  local present, absent = {}, {}
  for n, name in ipairs({'s', 'l', 'o', 'd', 'e', 'k'}) do
    local value = ARGV[a.field + n - 1]
    if value == '' then
      absent[#absent + 1] = name
    else
      present[#present + 1] = name
      present[#present + 1] = string.sub(value, 2)
    end
  end
  if #present > 0 then redis.call('HSET', a.head, unpack(present)) end
  if #absent > 0 then redis.call('HDEL', a.head, unpack(absent)) end
  local new_status, new_due = ARGV[a.field], ARGV[a.field + 5]
  if status and '=' .. status ~= new_status then
    redis.call('ZREM', a.index, encode_status(status, a.id))
  end
  if new_status ~= '' then
    redis.call('ZADD', a.index, 0, encode_status(string.sub(new_status, 2), a.id))
  end
  if due and '=' .. due ~= new_due then redis.call('ZREM', a.index, 'd' .. due .. a.id) end
  if new_due ~= '' then redis.call('ZADD', a.index, 0, 'd' .. string.sub(new_due, 2) .. a.id) end
end
"""

APPEND: Final = LuaScript(
    _LOST
    + _SET_FIELDS
    + """
-- KEYS: store, then for each append: head, records, append ids, tombstones, index, counter.
-- ARGV: epoch ('' if the store is on another node), prefix of channels, whether to write in any
-- case; then each append, see `encode_append`.
local epoch, channel, touch = ARGV[1], ARGV[2], ARGV[3] == '1'
if epoch ~= '' and redis.call('HGET', KEYS[1], 'epoch') ~= epoch then
  return {'lost', 1, 0, KEYS[1]}
end

local appends, argument = {}, 4
for key = 2, #KEYS, 6 do
  appends[#appends + 1] = {
    head = KEYS[key], records = KEYS[key + 1], ids = KEYS[key + 2], former = KEYS[key + 3],
    index = KEYS[key + 4], counter = KEYS[key + 5], expected = tonumber(ARGV[argument + 1]),
    hash = ARGV[argument + 2], incarnation = ARGV[argument + 3], mark = ARGV[argument + 4],
    indexed = ARGV[argument + 5] == '1', fields = ARGV[argument + 6] == '1', field = argument + 7,
    id = ARGV[argument + 13], largest = tonumber(ARGV[argument + 14]),
    newest = ARGV[argument + 15], first = argument + 17,
    last = argument + 16 + tonumber(ARGV[argument + 16]),
  }
  local counter, seen = KEYS[key + 5], ARGV[argument]
  if lost(counter, seen) then
    return {'lost', tonumber(seen), tonumber(redis.call('GET', counter) or '0'), counter}
  end
  argument = appends[#appends].last + 1
end

-- Return first and last version of an append that is already stored; nil if it is not; false if
-- its id refers to versions that do not exist.
local function find_append(a, version, incarnation)
  if a.indexed then
    local versions = redis.call('HGET', a.ids, a.mark)
    if versions then
      local first, last = string.match(versions, '^(%d+) (%d+)$')
      first, last = tonumber(first or 0), tonumber(last or 0)
      return first >= 1 and first <= last and last <= version and first, last
    end
  end
  if incarnation ~= a.incarnation then return nil end
  local last = a.expected
  while last < version do
    local record = redis.call('LINDEX', a.records, last)
    if not record or string.sub(record, 1, #a.mark) ~= a.mark then break end
    last = last + 1
  end
  if last > a.expected then return a.expected + 1, last end
end

local function conflict(a)
  return {'conflict', redis.call('HMGET', a.head, 'v', 'h', 'i', 's', 'l', 'o', 'd', 'e')}
end

local function append(a)
  local version, hash, incarnation, largest, status, due =
    unpack(redis.call('HMGET', a.head, 'v', 'h', 'i', 'm', 's', 'k'))
  local exists = version and true
  version, largest = tonumber(version or '0'), tonumber(largest or '0')
  if exists then
    local first, last = find_append(a, version, incarnation)
    if first == false then return redis.error_reply('CORRUPT an append id refers to no version') end
    if first then
      -- A write, so that WAIT on this connection also waits for earlier writes of other clients.
      if touch then redis.call('INCR', a.counter) end
      return {'known', first, last}
    end
    if version ~= a.expected or hash ~= a.hash or incarnation ~= a.incarnation then
      return conflict(a)
    end
  elseif a.expected ~= 0 or redis.call('SISMEMBER', a.former, a.incarnation) == 1 then
    return conflict(a)
  end
  if redis.call('LLEN', a.records) ~= version then
    return redis.error_reply('CORRUPT head and records disagree')
  end
  if a.indexed then redis.call('HLEN', a.ids) end
  redis.call('ZCARD', a.index)

  local count = redis.pcall('INCR', a.counter)
  if type(count) == 'table' then return count end
  for first = a.first, a.last, 1000 do
    redis.call('RPUSH', a.records, unpack(ARGV, first, math.min(first + 999, a.last)))
  end
  local last = version + a.last - a.first + 1
  redis.call('HSET', a.head, 'v', last, 'h', a.newest, 'm', math.max(largest, a.largest))
  if not exists then
    redis.call('HSET', a.head, 'i', a.incarnation)
    redis.call('ZADD', a.index, 0, 'a' .. a.id)
  end
  if a.indexed then redis.call('HSET', a.ids, a.mark, (version + 1) .. ' ' .. last) end
  if a.fields then set_fields(a, status, due) end
  -- A hint for watchers; a user without permission to publish can still append.
  redis.pcall('PUBLISH', channel .. a.head, '')
  return {'stored', version + 1, last, count}
end

local answers = {}
for n, a in ipairs(appends) do
  local answer = append(a)
  if answer.err then return answer end
  answers[n] = answer
end
return {'done', redis.call('TIME'), answers}
"""
)

REPLACE_FIELDS: Final = LuaScript(
    _SET_FIELDS
    + """
-- Replace the fields of a head that is still at this position.
-- KEYS: head, index. ARGV: version, hash, incarnation, id, then the fields as for an append.
local version, hash, incarnation, status, due =
  unpack(redis.call('HMGET', KEYS[1], 'v', 'h', 'i', 's', 'k'))
if version ~= ARGV[1] or hash ~= ARGV[2] or incarnation ~= ARGV[3] then return {'moved', 0} end
redis.call('ZCARD', KEYS[2])
set_fields({head = KEYS[1], index = KEYS[2], id = ARGV[4], field = 5}, status, due)
return {'repaired', 1}
"""
)

REPAIR: Final = LuaScript("""
-- Change derived data, if the stream is still at this position. Return the number of changes.
-- KEYS: head, append ids, index. ARGV: version and incarnation ('' if there must be no head); then
-- each change: what, and two arguments.
local version, incarnation = unpack(redis.call('HMGET', KEYS[1], 'v', 'i'))
if (version or '') ~= ARGV[1] or (incarnation or '') ~= ARGV[2] then return {'moved', 0} end
local changes = {
  ['index-add'] = function(member) redis.call('ZADD', KEYS[3], 0, member) end,
  ['index-remove'] = function(member) redis.call('ZREM', KEYS[3], member) end,
  ['ids-set'] = function(mark, versions) redis.call('HSET', KEYS[2], mark, versions) end,
  ['ids-remove'] = function(mark) redis.call('HDEL', KEYS[2], mark) end,
  ['ids-unlink'] = function() redis.call('UNLINK', KEYS[2]) end,
  ['head-set'] = function(field, value) redis.call('HSET', KEYS[1], field, value) end,
  ['head-remove'] = function(field) redis.call('HDEL', KEYS[1], field) end,
}
for n = 3, #ARGV, 3 do changes[ARGV[n]](ARGV[n + 1], ARGV[n + 2]) end
return {'repaired', (#ARGV - 2) / 3}
""")

DELETE: Final = LuaScript(
    _LOST
    + """
-- KEYS as for one append. ARGV: epoch, seen, version, hash, incarnation, id.
local head, records, ids, former, index, counter = unpack(KEYS, 2)
if ARGV[1] ~= '' and redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
  return {'lost', 1, 0, KEYS[1]}
end
if lost(counter, ARGV[2]) then
  return {'lost', tonumber(ARGV[2]), tonumber(redis.call('GET', counter) or '0'), counter}
end
local version, hash, incarnation, status, due =
  unpack(redis.call('HMGET', head, 'v', 'h', 'i', 's', 'k'))
if version ~= ARGV[3] or hash ~= ARGV[4] or incarnation ~= ARGV[5] then return {'moved'} end
redis.call('LLEN', records)
redis.call('ZCARD', index)
redis.call('SCARD', former)
-- First a command that needs no memory: deletion must work when Redis is full.
local unlisted = redis.pcall('ZREM', index, 'a' .. ARGV[6])
if type(unlisted) == 'table' then return unlisted end
redis.call('SADD', former, incarnation)
if status then
  redis.call('ZREM', index, 's' .. string.format('%08d', #status) .. status .. ARGV[6])
end
if due then redis.call('ZREM', index, 'd' .. due .. ARGV[6]) end
redis.call('UNLINK', head, records, ids)
return {'deleted', redis.call('INCR', counter)}
"""
)
