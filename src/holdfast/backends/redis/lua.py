"""The scripts that run inside Redis, each as one step for everybody else.

Lua in Redis has no rollback. So every script reads first and writes last: a command that could fail on a key of another
kind is preceded by one that reads that key. The first write of an append is the one that Redis refuses when it is full,
a replica or cannot save; once it is through, Redis lets the others of the script through as well.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final


class LuaScript:
    """Lua text, and the name under which a server that has seen it knows it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.name = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def call(self, keys: list[bytes], arguments: list[Any], *, whole: bool = False) -> list[Any]:
        """The command that runs it; `whole` sends the text as well."""
        first = ["EVAL", self.text] if whole else ["EVALSHA", self.name]
        return [*first, len(keys), *keys, *arguments]


OPEN: Final = LuaScript("""
-- The store as it is, made if it is not there. KEYS: store. ARGV: schema, epoch.
if redis.call('EXISTS', KEYS[1]) == 0 then
  local made = redis.pcall('HSET', KEYS[1], 'schema', ARGV[1], 'epoch', ARGV[2])
  if type(made) == 'table' and made.err then return made end
end
return redis.call('HMGET', KEYS[1], 'schema', 'epoch')
""")

PROBE: Final = LuaScript("""
-- The first command of the other scripts that this user may not run, with what Redis says. KEYS: a key for this alone.
local key = KEYS[1]
local commands = {
  {'UNLINK', key}, {'INCR', key}, {'GET', key}, {'UNLINK', key},
  {'RPUSH', key, 'x'}, {'LLEN', key}, {'LINDEX', key, 0}, {'LTRIM', key, 0, 0}, {'UNLINK', key},
  {'HSET', key, 'x', 'x'}, {'HGET', key, 'x'}, {'HMGET', key, 'x'}, {'HLEN', key}, {'HDEL', key, 'y'}, {'UNLINK', key},
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
-- Whether the server has lost what this client knows that it had.
local function lost(counter, seen)
  return tonumber(redis.call('GET', counter) or '0') < tonumber(seen)
end
"""

APPEND: Final = LuaScript(
    _LOST
    + """
-- KEYS: store, then for each append: head, records, append ids, former lives, index, counter.
-- ARGV: epoch ('' if the store cannot be asked), what channels begin with, whether to write in any case; then each append, see `arguments`.
local epoch, channel, touch = ARGV[1], ARGV[2], ARGV[3] == '1'
if epoch ~= '' and redis.call('HGET', KEYS[1], 'epoch') ~= epoch then return {'lost', 1, 0, KEYS[1]} end

local appends, place = {}, 4
for key = 2, #KEYS, 6 do
  appends[#appends + 1] = {
    head = KEYS[key], records = KEYS[key + 1], ids = KEYS[key + 2], former = KEYS[key + 3], index = KEYS[key + 4],
    counter = KEYS[key + 5], expected = tonumber(ARGV[place + 1]), hash = ARGV[place + 2],
    incarnation = ARGV[place + 3], mark = ARGV[place + 4], indexed = ARGV[place + 5] == '1',
    fields = ARGV[place + 6] == '1', field = place + 7, id = ARGV[place + 13], largest = tonumber(ARGV[place + 14]),
    newest = ARGV[place + 15], first = place + 17, last = place + 16 + tonumber(ARGV[place + 16]),
  }
  if lost(KEYS[key + 5], ARGV[place]) then
    return {'lost', tonumber(ARGV[place]), tonumber(redis.call('GET', KEYS[key + 5]) or '0'), KEYS[key + 5]}
  end
  place = appends[#appends].last + 1
end

-- Where an append is already stored: first and last version, or nothing; false if its id leads to where nothing is.
local function known(a, version, incarnation)
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

local function of_status(status, id)
  return 's' .. string.format('%08d', #status) .. status .. id
end

-- Set the fields, and list the stream under them. `status` and `due` are what it was listed under before.
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
  if status and '=' .. status ~= new_status then redis.call('ZREM', a.index, of_status(status, a.id)) end
  if new_status ~= '' then redis.call('ZADD', a.index, 0, of_status(string.sub(new_status, 2), a.id)) end
  if due and '=' .. due ~= new_due then redis.call('ZREM', a.index, 'd' .. due .. a.id) end
  if new_due ~= '' then redis.call('ZADD', a.index, 0, 'd' .. string.sub(new_due, 2) .. a.id) end
end

local function append(a)
  local version, hash, incarnation, largest, status, due =
    unpack(redis.call('HMGET', a.head, 'v', 'h', 'i', 'm', 's', 'k'))
  local exists = version and true
  version, largest = tonumber(version or '0'), tonumber(largest or '0')
  if exists then
    local first, last = known(a, version, incarnation)
    if first == false then return redis.error_reply('CORRUPT an append id leads to no version') end
    if first then
      -- A write, so that WAIT on this connection waits for what others wrote before.
      if touch then redis.call('INCR', a.counter) end
      return {'known', first, last}
    end
    if version ~= a.expected or hash ~= a.hash or incarnation ~= a.incarnation then return conflict(a) end
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
  -- A hint for those who follow; a user who may not publish appends all the same.
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

DELETE: Final = LuaScript(
    _LOST
    + """
-- KEYS as for one append. ARGV: epoch, seen, version, hash, incarnation, id.
local head, records, ids, former, index, counter = unpack(KEYS, 2)
if ARGV[1] ~= '' and redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return {'lost', 1, 0, KEYS[1]} end
if lost(counter, ARGV[2]) then
  return {'lost', tonumber(ARGV[2]), tonumber(redis.call('GET', counter) or '0'), counter}
end
local version, hash, incarnation, status, due = unpack(redis.call('HMGET', head, 'v', 'h', 'i', 's', 'k'))
if version ~= ARGV[3] or hash ~= ARGV[4] or incarnation ~= ARGV[5] then return {'moved'} end
redis.call('LLEN', records)
redis.call('ZCARD', index)
redis.call('SCARD', former)
-- Not first what needs memory: deleting must work when Redis is full.
local unlisted = redis.pcall('ZREM', index, 'a' .. ARGV[6])
if type(unlisted) == 'table' then return unlisted end
redis.call('SADD', former, incarnation)
if status then redis.call('ZREM', index, 's' .. string.format('%08d', #status) .. status .. ARGV[6]) end
if due then redis.call('ZREM', index, 'd' .. due .. ARGV[6]) end
redis.call('UNLINK', head, records, ids)
return {'deleted', redis.call('INCR', counter)}
"""
)
