-- What stands between a script and the gateway: the script's globals, calls and promises, JSON both ways, and limits.
--
-- Everything used after the script has started is a local here: a script that overwrites string.gsub or next changes
-- nothing for this file. The four host functions below are the only Python objects; no script can reach them, because
-- there is no debug library, and no value of them is ever stored where a script could look.

local host_send, host_receive, host_lift, host_cap, source, settings = ...

local assert, error, getmetatable, ipairs, next, pcall, rawequal, rawget, rawlen, select, setmetatable, tonumber, tostring, type,
  xpcall, load = assert, error, getmetatable, ipairs, next, pcall, rawequal, rawget, rawlen, select, setmetatable, tonumber,
  tostring, type, xpcall, load
local byte, char, find, format, gsub, lower, match, pack, rep, sub, unpack_binary = string.byte, string.char,
  string.find, string.format, string.gsub, string.lower, string.match, string.pack, string.rep, string.sub, string.unpack
local concat, sort, unpack = table.concat, table.sort, table.unpack
local math_type, to_integer, huge = math.type, math.tointeger, math.huge
local utf8_len, utf8_char = utf8.len, utf8.char
local clock, traceback, sethook, get_info = os.clock, debug.traceback, debug.sethook, debug.getinfo
local create, resume, status, close_coroutine = coroutine.create, coroutine.resume, coroutine.status, coroutine.close

local WEAK = { __mode = "k" }
local started = clock()

-- JSON ---------------------------------------------------------------------------------------------------------------

local function locked(name, fields)
  fields = fields or {}
  fields.__name, fields.__metatable = name, false
  return fields
end

local null = setmetatable({}, locked("null", {
  __tostring = function() return "null" end,
  __newindex = function() error("null cannot be changed", 2) end,
}))
local arrays = setmetatable({}, WEAK) -- tables that are arrays even when empty
local nulls = setmetatable({}, WEAK)  -- table -> the keys that were null in the JSON it came from
local promises = setmetatable({}, WEAK)
local servers = setmetatable({}, WEAK)

local ESCAPES = { ['"'] = '\\"', ["\\"] = "\\\\", ["\b"] = "\\b", ["\f"] = "\\f", ["\n"] = "\\n", ["\r"] = "\\r",
  ["\t"] = "\\t" }
for code = 0, 31 do
  ESCAPES[char(code)] = ESCAPES[char(code)] or format("\\u%04x", code)
end
local UNESCAPES = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t", ['"'] = '"', ["\\"] = "\\", ["/"] = "/" }

local function quoted(text)
  return '"' .. (find(text, '[%c"\\]') and gsub(text, '[\0-\31"\\]', ESCAPES) or text) .. '"'
end

-- A text of at most `limit` bytes that is valid UTF-8, whatever came in.
local function clean(text, limit)
  if #text > limit then
    text = sub(text, 1, limit)
    for _ = 1, 3 do -- not in the middle of a character
      if utf8_len(text) then break end
      if utf8_len(sub(text, 1, -2)) then text = sub(text, 1, -2) break end
      text = sub(text, 1, -2)
    end
    text = text .. "…"
  end
  if not utf8_len(text) then text = gsub(text, "[\128-\255]", "?") end
  return text
end

local function number_text(value, fail, depth)
  if math_type(value) == "integer" then return format("%d", value) end
  if value ~= value or value == huge or value == -huge then
    fail(depth, "is " .. (value ~= value and "not a number" or "infinite") .. ", which JSON cannot carry")
  end
  if value > -0x1p53 and value < 0x1p53 and value % 1 == 0 then return format("%d", to_integer(value)) end
  for digits = 15, 16 do
    local text = format("%." .. digits .. "g", value)
    if tonumber(text) == value then return text end
  end
  return format("%.17g", value)
end

local function path_text(root, path, depth)
  local parts = { root }
  local shown = depth > 12 and 12 or depth
  for place = 1, shown do
    local key = path[place]
    if type(key) == "number" then
      parts[#parts + 1] = "[" .. tostring(key) .. "]"
    elseif find(key, "^[%a_][%w_]*$") and #key <= 60 then
      parts[#parts + 1] = "." .. key
    else
      parts[#parts + 1] = "[" .. quoted(clean(key, 60)) .. "]"
    end
  end
  if shown < depth then parts[#parts + 1] = "..." end
  return concat(parts)
end

-- The value as JSON; `limits` has bytes, depth and nodes. What is wrong is raised as a text that begins with the path.
local function encode(value, root, limits)
  local out, size, nodes, used = {}, 0, 0, 0
  local path, above = {}, {}

  local function put(text)
    size = size + #text
    if size > limits.bytes then error(root .. " is larger than " .. limits.bytes .. " bytes", 0) end
    used = used + 1
    out[used] = text
  end

  local walk

  local function fail(depth, what)
    error(path_text(root, path, depth) .. " " .. what, 0)
  end

  local function members(object, depth)
    local missing = nulls[object]
    local names, count, texts = {}, 0, {}
    for key in next, object do
      local kind = math_type(key)
      if type(key) ~= "string" and kind ~= "integer" then
        fail(depth - 1, "has a key that is a " .. (kind or type(key)) .. "; keys are texts or whole numbers")
      end
      local text = kind and format("%d", key) or key
      if texts[text] ~= nil then fail(depth - 1, "has both the number and the text " .. text .. " as keys") end
      if not kind and not utf8_len(key) then fail(depth - 1, "has a key that is not valid UTF-8") end
      count = count + 1
      if nodes + count > limits.nodes then error(root .. " is larger than " .. limits.nodes .. " values", 0) end
      texts[text], names[count] = key, text
    end
    if missing then
      for key in next, missing do
        if texts[key] == nil then
          count = count + 1
          texts[key], names[count] = key, key
        end
      end
    end
    sort(names)
    put("{")
    for place = 1, count do
      local key = texts[names[place]]
      local member = rawget(object, key)
      put((place > 1 and "," or "") .. quoted(names[place]) .. ":")
      path[depth] = key
      if member == nil then put("null") else walk(member, depth) end
    end
    put("}")
  end

  local function is_array(object)
    local count, last = 0, 0
    for key in next, object do
      if math_type(key) ~= "integer" or key < 1 then return false end
      count = count + 1
      if key > last then last = key end
    end
    if count == 0 then return arrays[object] ~= nil, 0 end
    return count == last, count
  end

  walk = function(item, depth)
    nodes = nodes + 1
    if nodes > limits.nodes then error(root .. " is larger than " .. limits.nodes .. " values", 0) end
    local kind = type(item)
    if kind == "string" then
      if #item > limits.bytes then error(root .. " is larger than " .. limits.bytes .. " bytes", 0) end
      if not utf8_len(item) then fail(depth, "is not valid UTF-8; base64-encode binary data") end
      put(quoted(item))
    elseif kind == "number" then
      put(number_text(item, fail, depth))
    elseif kind == "boolean" then
      put(item and "true" or "false")
    elseif kind == "nil" or rawequal(item, null) then
      put("null")
    elseif kind ~= "table" then
      fail(depth, "is a " .. kind .. ", which JSON cannot carry")
    elseif promises[item] then
      fail(depth, "is a call to " .. promises[item].name .. " that was not awaited; add :await()")
    elseif servers[item] then
      fail(depth, "is the server " .. servers[item] .. ", which JSON cannot carry")
    elseif above[item] then
      fail(depth, "contains itself")
    else
      if depth >= limits.depth then fail(depth, "is nested deeper than " .. limits.depth .. " levels") end
      above[item] = true
      local array, count = is_array(item)
      if array then
        put("[")
        for place = 1, count do
          if place > 1 then put(",") end
          path[depth + 1] = place
          walk(rawget(item, place), depth + 1)
        end
        put("]")
      else
        members(item, depth + 1)
      end
      above[item] = nil
    end
  end

  walk(value, 0)
  return concat(out)
end

local function unescape(text, fail)
  local out, at = {}, 1
  while true do
    local stop = find(text, "\\", at, true)
    if not stop then
      out[#out + 1] = sub(text, at)
      return concat(out)
    end
    out[#out + 1] = sub(text, at, stop - 1)
    local letter = sub(text, stop + 1, stop + 1)
    at = stop + 2
    if letter == "u" then
      local code = tonumber(match(text, "^%x%x%x%x", at) or fail(), 16)
      at = at + 4
      if code >= 0xD800 and code < 0xE000 then
        local low = code < 0xDC00 and match(text, "^\\u([dD][c-fC-F]%x%x)", at) or fail()
        code = 0x10000 + ((code & 0x3FF) << 10) + (tonumber(low, 16) & 0x3FF)
        at = at + 6
      end
      out[#out + 1] = utf8_char(code)
    else
      out[#out + 1] = UNESCAPES[letter] or fail()
    end
  end
end

-- The value of a JSON text. Null is nil as a member, and the `null` value in an array.
local function decode(text, max_depth)
  local at = 1

  local function fail(what)
    error((what or "not valid JSON") .. " at byte " .. at, 0)
  end

  local function string_at()
    local from, i = at + 1, at + 1
    local escaped = false
    while true do
      local stop = find(text, '["\\%c]', i)
      if not stop then fail() end
      local c = byte(text, stop)
      if c == 34 then
        at = stop + 1
        local found = sub(text, from, stop - 1)
        return escaped and unescape(found, fail) or found
      elseif c == 92 then
        escaped, i = true, stop + 2
      elseif c == 127 then
        i = stop + 1
      else
        fail()
      end
    end
  end

  local function number_at()
    local literal, dot, exponent, stop = match(text, "^(-?%d+)(%.?%d*)([eE]?[+-]?%d*)()", at)
    if not literal or find(literal, "^-?0%d") then fail() end
    local value = tonumber(literal .. dot .. exponent)
    if not value then fail() end
    at = stop
    if dot == "" and exponent == "" and math_type(value) == "float" then return literal end -- exact, as a text
    return value
  end

  local function skip()
    at = find(text, "[^ \t\r\n]", at) or #text + 1
    return byte(text, at)
  end

  local value_at

  local function array_at(depth)
    local list, count = {}, 0
    arrays[list] = true
    at = at + 1
    if skip() == 93 then at = at + 1 return list end
    while true do
      local item = value_at(depth)
      count = count + 1
      if item == nil then item = null end
      list[count] = item
      local c = skip()
      at = at + 1
      if c == 93 then return list end
      if c ~= 44 then fail() end
    end
  end

  local function object_at(depth)
    local object, missing = {}, nil
    at = at + 1
    if skip() == 125 then at = at + 1 return object end
    while true do
      if skip() ~= 34 then fail() end
      local key = string_at()
      if skip() ~= 58 then fail() end
      at = at + 1
      local item = value_at(depth)
      if item == nil then
        missing = missing or {}
        missing[key] = true
      else
        object[key] = item
      end
      local c = skip()
      at = at + 1
      if c == 125 then
        nulls[object] = missing
        return object
      end
      if c ~= 44 then fail() end
    end
  end

  value_at = function(depth)
    local c = skip()
    if c == 34 then return string_at() end
    if c == 123 or c == 91 then
      if depth >= max_depth then fail("nested deeper than " .. max_depth .. " levels") end
      if c == 123 then return object_at(depth + 1) end
      return array_at(depth + 1)
    end
    if c == 116 and sub(text, at, at + 3) == "true" then at = at + 4 return true end
    if c == 102 and sub(text, at, at + 4) == "false" then at = at + 5 return false end
    if c == 110 and sub(text, at, at + 3) == "null" then at = at + 4 return nil end
    return number_at()
  end

  local value = value_at(0)
  if skip() then fail() end
  return value
end

local DECODE_DEPTH = 200
local config = decode(settings, DECODE_DEPTH)
local VALUE = { bytes = config.out_bytes, depth = config.depth, nodes = config.nodes }
local ERROR = { bytes = 1 << 30, depth = 8, nodes = 1000 }

-- Frames -------------------------------------------------------------------------------------------------------------

local printed, printed_size, printed_total, printed_cut = {}, 0, 0, false

local function flush()
  if printed_size > 0 then
    local text = concat(printed)
    printed, printed_size = {}, 0
    host_send("p" .. text)
  end
end

local function print_line(...)
  local line = {}
  for place = 1, select("#", ...) do line[place] = tostring((select(place, ...))) end
  local text = concat(line, "\t") .. "\n"
  local room = config.print_bytes - printed_total
  if #text > room then
    text, printed_cut = sub(text, 1, room), true
  end
  if text == "" then return end
  printed[#printed + 1] = text
  printed_size, printed_total = printed_size + #text, printed_total + #text
  if printed_size >= 4096 then
    host_lift()
    flush()
    host_cap()
  end
end

local function trace_of(text)
  local lines = {}
  for line in string.gmatch(text, "[^\n]+") do
    local ours = find(line, "prelude:", 1, true) or find(line, "^%s*%[C%]: in %?")
      or find(line, "^%s*%[C%]: in function 'xpcall'$") and not find(text, "xpcall.*\n.*xpcall")
    if not ours and #lines < 40 then
      lines[#lines + 1] = line
    end
  end
  return concat(lines, "\n")
end

local function line_in(...)
  for place = 1, select("#", ...) do
    local line = match((select(place, ...)), "script:(%d+):")
    if line then return to_integer(tonumber(line)) end
  end
  return nil
end

-- The last frame of a script that did not end well.
local function failed(kind, message, trace, stage)
  host_lift()
  flush()
  local said = {
    kind = kind,
    message = clean(message, config.error_bytes),
    traceback = clean(trace, 2 * config.error_bytes),
    line = line_in(message, trace) or null,
    stage = stage,
    cut = printed_cut,
    cpu_s = clock() - started,
  }
  host_send("e" .. encode(said, "error", ERROR))
end

local function on_count()
  if clock() - started <= config.soft_cpu_s then return end
  sethook()
  host_lift()
  local trace = trace_of(traceback("", 2))
  failed("cpu", "script:" .. (line_in(trace) or "?") .. ": still computing after " .. config.soft_cpu_s
    .. " seconds of processor time", trace, "run")
  while true do host_receive() end -- the gateway ends this process
end

local HOOK_EVERY = 100000

-- Calls --------------------------------------------------------------------------------------------------------------

local calls, running, running_bytes = 0, 0, 0
local answers = {}                       -- id -> frame; of calls that were answered, until they are awaited
local sizes = {}                         -- id -> bytes of arguments under way
local queue, queue_from, queue_to = {}, 1, 0 -- calls that wait for their turn

local function room_for(size)
  return running < config.inflight and (running == 0 or running_bytes + size <= config.inflight_bytes)
end

-- Memory is lifted.
local function send_call(call)
  sizes[call.id] = #call.body
  running, running_bytes = running + 1, running_bytes + #call.body
  host_send("c" .. pack(">I4I2I2", call.id, call.server, call.tool) .. call.body)
end

local function take_answer()
  host_lift()
  flush()
  local frame = host_receive()
  local id = unpack_binary(">I4", frame)
  answers[id] = frame
  running, running_bytes = running - 1, running_bytes - sizes[id]
  sizes[id] = nil
  while queue_from <= queue_to and room_for(#queue[queue_from].body) do
    local call = queue[queue_from]
    queue[queue_from] = nil
    queue_from = queue_from + 1
    send_call(call)
  end
  host_cap()
end

local promise_type

local function start(server, tool, arguments)
  if calls >= config.calls then error("more than " .. config.calls .. " tool calls in one script", 3) end
  local ok, body = pcall(encode, arguments, tool.label, VALUE)
  if not ok then error(body, 3) end
  local id = calls + 1
  local promise = setmetatable({}, promise_type)
  local state = { id = id, name = tool.label }
  local call = { id = id, server = server.index, tool = tool.index, body = body }
  promises[promise] = state
  if queue_from <= queue_to or not room_for(#body) then
    queue[queue_to + 1] = call
    calls, queue_to = id, queue_to + 1
    return promise, state
  end
  calls = id
  host_lift()
  flush()
  send_call(call)
  host_cap()
  return promise, state
end

local unawaited = {} -- id -> name

local function settled(state)
  if not state.ready then
    unawaited[state.id] = nil
    while not answers[state.id] do take_answer() end
    local frame = answers[state.id]
    local ok = byte(frame, 5) == 1
    if ok then
      state.value = decode(sub(frame, 6), DECODE_DEPTH)
    else
      state.value = state.name .. ": " .. sub(frame, 6)
    end
    answers[state.id] = nil
    state.ready, state.ok = true, ok
  end
  return state.ok, state.value
end

local function state_of(promise, what, level)
  local state = promises[promise]
  if not state then
    error(what .. " needs a call such as server.tool{...}, and got a " .. type(promise), level + 1)
  end
  return state
end

local function await(promise)
  local ok, value = settled(state_of(promise, "await", 2))
  if not ok then error(value, 2) end
  return value
end

local function try(promise)
  return settled(state_of(promise, "try", 2))
end

local function await_all(list)
  if type(list) ~= "table" or promises[list] then
    error("await_all needs a table of calls, such as await_all{a, b}", 2)
  end
  local values, wrong = {}, nil
  local is_list = true
  local keys = {}
  for key in next, list do
    keys[#keys + 1] = key
    if math_type(key) ~= "integer" then is_list = false end
  end
  if is_list then
    sort(keys)
    arrays[values] = true
  end
  for _, key in ipairs(keys) do
    local item = list[key]
    if promises[item] then
      local ok, value = settled(promises[item])
      if not ok and not wrong then wrong = value end
      item = value
    end
    if item == nil then item = null end
    values[key] = item
  end
  if wrong then error(wrong, 2) end
  return values
end

local methods = { await = await, try = try }
promise_type = locked("call that was not awaited", {
  __index = function(promise, key)
    local method = methods[key]
    if method then return method end
    local name = promises[promise] and promises[promise].name or "the call"
    error(name .. " was not awaited; add :await() before you read " .. clean(tostring(key), 60), 2)
  end,
  __newindex = function() error("a call that was not awaited cannot be changed", 2) end,
  __tostring = function(promise) return "call to " .. (promises[promise] and promises[promise].name or "?") end,
})

-- Servers ------------------------------------------------------------------------------------------------------------

local function named_only(server, proxy, tool, ...)
  local count = select("#", ...)
  local first, second = ...
  if rawequal(first, proxy) and count > 0 then -- server:tool{...}
    first, count = second, count - 1
  end
  if count == 0 or (count == 1 and (first == nil or rawequal(first, null))) then return {} end
  if count > 1 or type(first) ~= "table" or promises[first] or servers[first] then
    error(tool.label .. " takes one table of named arguments, such as {name = value}", 3)
  end
  for key in next, first do
    if type(key) ~= "string" then
      error(tool.label .. " takes named arguments, such as {name = value}; this table has the key "
        .. clean(tostring(key), 60), 3)
    end
  end
  if arrays[first] then -- an empty array is no arguments
    local copy = {}
    for key, value in next, first do copy[key] = value end
    return copy
  end
  return first
end

local function tools_text(server)
  local names = {}
  for place = 1, #server.tools do
    if place > 20 then
      names[place] = "and " .. (#server.tools - 20) .. " more"
      break
    end
    names[place] = server.tools[place].name
  end
  return #names > 0 and concat(names, ", ") or "nothing"
end

local function server_table(server)
  local by_name, functions, proxy = {}, {}, {}
  for index, tool in ipairs(server.tools) do
    tool.index, tool.label = index - 1, server.name .. "." .. tool.name
    by_name[tool.name] = tool
  end
  for _, tool in ipairs(server.tools) do
    if not by_name[tool.original] then by_name[tool.original] = tool end
  end
  local function lookup(_, key)
    local tool = by_name[key]
    if not tool then
      error("server '" .. server.name .. "' has no tool '" .. clean(tostring(key), 60) .. "'; it has: "
        .. tools_text(server), 2)
    end
    local call = functions[tool]
    if not call then
      call = function(...)
        local promise, state = start(server, tool, named_only(server, proxy, tool, ...))
        unawaited[state.id] = state.name
        return promise
      end
      functions[tool] = call
    end
    return call
  end
  servers[proxy] = server.name
  return setmetatable(proxy, locked("server", {
    __index = lookup,
    __newindex = function() error("server '" .. server.name .. "' cannot be changed", 2) end,
    __tostring = function() return "server " .. server.name end,
    __pairs = function()
      local place = 0
      return function()
        place = place + 1
        local tool = server.tools[place]
        if tool then return tool.name, lookup(proxy, tool.name) end
      end
    end,
  }))
end

-- The script's globals -----------------------------------------------------------------------------------------------

local function copy(library, without)
  local fields = {}
  for name, value in next, library do
    if name ~= without then fields[name] = value end
  end
  return fields
end

local function hooked(body)
  local co = create(body)
  sethook(co, on_count, "", HOOK_EVERY)
  return co
end

local function pass(co, ok, ...)
  if ok then return ... end
  if status(co) == "dead" then close_coroutine(co) end
  error((...), 0)
end

local script = {}
local value_text, has_value

local function keep(what, ...)
  local count = select("#", ...)
  local value = ...
  if count > 1 then
    value = {}
    arrays[value] = true
    for place = 1, count do
      local item = select(place, ...)
      if item == nil then item = null end
      value[place] = item
    end
  end
  local text = encode(value, what, VALUE)
  value_text, has_value = text, true
end

for _, name in ipairs { "assert", "error", "getmetatable", "ipairs", "next", "pairs", "pcall", "rawequal", "rawget",
  "rawlen", "rawset", "select", "tonumber", "tostring", "type", "xpcall", "_VERSION" } do
  script[name] = _G[name]
end
script._G = script
script.string, script.math, script.table, script.utf8 = copy(string, "dump"), copy(math), copy(table), copy(utf8)
script.coroutine = copy(coroutine)
script.coroutine.create = function(body)
  if type(body) ~= "function" then error("coroutine.create needs a function", 2) end
  return hooked(body)
end
script.coroutine.wrap = function(body)
  if type(body) ~= "function" then error("coroutine.wrap needs a function", 2) end
  local co = hooked(body)
  return function(...) return pass(co, resume(co, ...)) end
end
script.load = function(chunk, name, mode, ...)
  if name ~= nil and type(name) ~= "string" then error("load needs a text as the chunk's name", 2) end
  if select("#", ...) > 0 then return load(chunk, name or "=load", "t", (...)) end
  return load(chunk, name or "=load", "t", script)
end
script.setmetatable = function(object, meta)
  if type(meta) == "table" and rawget(meta, "__gc") ~= nil then error("__gc is not available", 2) end
  return setmetatable(object, meta)
end
script.print = print_line
script.result = function(...)
  local ok, wrong = pcall(keep, "result", ...)
  if not ok then error(wrong, 2) end
end
script.await, script.await_all, script.null = await, await_all, null
script.json = {
  null = null,
  array = function(list)
    if list == nil then list = {} end
    if type(list) ~= "table" or promises[list] or servers[list] or rawequal(list, null) then
      error("json.array needs a table", 2)
    end
    arrays[list] = true
    return list
  end,
  encode = function(value)
    local ok, text = pcall(encode, value, "value", VALUE)
    if not ok then error(text, 2) end
    return text
  end,
  decode = function(text)
    if type(text) ~= "string" then error("json.decode needs a text", 2) end
    local ok, value = pcall(decode, text, DECODE_DEPTH)
    if not ok then error(value, 2) end
    return value
  end,
}
for index, server in ipairs(config.servers) do
  server.index = index - 1
  local proxy = server_table(server)
  script[server.name] = proxy
  if script[server.original] == nil then script[server.original] = proxy end
end

local text_type = getmetatable("")
text_type.__index, text_type.__metatable = script.string, false

-- The run ------------------------------------------------------------------------------------------------------------

local chunk, problem = load(source, "=script", "t", script)
source, settings = nil, nil
if not chunk then return failed("script", problem, "", "syntax") end
if config.check then return host_send("d" .. encode({ has_value = false }, "done", ERROR)) end

local function message_of(problem)
  if type(problem) == "string" then return problem end
  if type(problem) == "number" then return tostring(problem) end
  if problem == nil then return "the script raised nil" end
  if type(problem) == "table" then
    local ok, text = pcall(encode, problem, "it", { bytes = 1024, depth = 4, nodes = 100 })
    return "error object: " .. (ok and text or "a table")
  end
  return "error object: a " .. type(problem)
end

local function explain(problem)
  return { message = message_of(problem), trace = traceback("", 2) }
end

sethook(on_count, "", HOOK_EVERY)
host_cap()
local ends = { n = 0 }
local function collect(ok, ...)
  if ok and select("#", ...) > 0 then ends = { n = select("#", ...), ... } end
  return ok, (...)
end
local fine, why = collect(xpcall(chunk, explain))
if fine and ends.n > 0 and not has_value then
  local kept, wrong = pcall(keep, "result", unpack(ends, 1, ends.n))
  if not kept then fine, why = false, { message = "script: " .. tostring(wrong), trace = "" } end
end
sethook()
host_lift()

if not fine then
  if type(why) ~= "table" then why = { message = message_of(why), trace = "" } end
  local memory = find(why.message, "not enough memory", 1, true)
  return failed(memory and "memory" or "script", why.message, trace_of(why.trace), "run")
end
flush()
if has_value then host_send("v" .. value_text) end
local names = {}
arrays[names] = true
for id, name in next, unawaited do names[#names + 1] = name end
sort(names)
host_send("d" .. encode({ has_value = has_value or false, unawaited = names, cut = printed_cut,
  cpu_s = clock() - started }, "done", { bytes = 1 << 30, depth = 8, nodes = 1 << 20 }))
