-- The layer between a script and the gateway: the script's globals, calls, promises and limits.
-- JSON is in json.lua.
--
-- Everything used after the script has started is a local here, so that a script that overwrites string.gsub or next
-- changes nothing in this file. The host functions below are the only Python objects. No script can reach them: there
-- is no debug library, and they are never stored where a script could look.

local json, host_send, host_receive, host_lift, host_cap, host_exit = ...

local error, getmetatable, ipairs, next, pcall, rawequal, rawget, select, setmetatable, tonumber, tostring, type, xpcall,
  load = error, getmetatable, ipairs, next, pcall, rawequal, rawget, select, setmetatable, tonumber, tostring, type, xpcall,
  load
local byte, find, match, pack, sub, unpack_binary = string.byte, string.find, string.match, string.pack, string.sub,
  string.unpack
local concat, sort, unpack = table.concat, table.sort, table.unpack
local math_type, to_integer = math.type, math.tointeger
local clock, traceback, sethook, getinfo = os.clock, debug.traceback, debug.sethook, debug.getinfo
local create, resume, running_thread = coroutine.create, coroutine.resume, coroutine.running
local status, close_coroutine = coroutine.status, coroutine.close

local started, config, VALUE -- set when there is a script

local locked, null, arrays, promises, servers = json.locked, json.null, json.arrays, json.promises, json.servers
local clean, encode, decode = json.clean, json.encode, json.decode

local DECODE_DEPTH = 200
local ERROR = { bytes = 1 << 30, depth = 8, nodes = 1000 }

-- The memory limit ---------------------------------------------------------------------------------------------------

-- Call a function with the memory limit lifted. A script can call us where the stack is nearly full, and catch the error
-- that follows. The first call fails there before anything is lifted; the last one needs no more room than the first.
local function unlimited(work, ...)
  host_cap()
  host_lift()
  local ok, problem = pcall(work, ...)
  host_cap()
  if not ok then error(problem, 0) end
end

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
  if printed_size >= 4096 then unlimited(flush) end
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

-- Send the last frame of a script that failed.
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

local function report_cpu(thread)
  host_lift()
  local trace = trace_of(traceback(thread, "", 2))
  failed("cpu", "script:" .. (line_in(trace) or "?") .. ": still computing after " .. config.soft_cpu_s
    .. " seconds of processor time", trace, "run")
  while true do host_receive() end -- the gateway ends this process
end

local reporter -- a coroutine of its own, so that the report needs no room on the script's stack

-- The hook and the memory limit stay until nothing can return to the script any more: `host_exit` ends the process where
-- the report fails, and needs no more room than `host_cap`, which changes nothing.
local function on_count()
  if clock() - started <= config.soft_cpu_s then return end
  host_cap()
  resume(reporter, running_thread())
  host_exit()
end

local HOOK_EVERY = 100000

-- Calls --------------------------------------------------------------------------------------------------------------

local calls, running, running_bytes = 0, 0, 0
local answers = {}                       -- id -> frame, of answered calls that were not awaited yet
local sizes = {}                         -- id -> bytes of arguments, of running calls
local queue, queue_from, queue_to = {}, 1, 0 -- calls waiting for their turn

local function room_for(size)
  return running < config.inflight and (running == 0 or running_bytes + size <= config.frame_bytes)
end

-- Call with the memory limit lifted.
local function send_call(call)
  sizes[call.id] = #call.body
  running, running_bytes = running + 1, running_bytes + #call.body
  host_send("c" .. pack(">I4I2I2", call.id, call.server, call.tool) .. call.body)
end

local function receive_answer()
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
end

local function send_now(call)
  flush()
  send_call(call)
end

local promise_type

local function start(server, tool, arguments)
  if calls >= config.calls then error("more than " .. config.calls .. " tool calls in one script", 3) end
  local ok, body = pcall(encode, arguments, tool.label, VALUE)
  if not ok then error(body, 3) end
  local id = calls + 1
  local promise = setmetatable({}, promise_type)
  local from = getinfo(3, "Sl")
  local line = from and from.short_src == "script" and from.currentline > 0 and from.currentline
  local state = { id = id, name = tool.label, line = line }
  local call = { id = id, server = server.index, tool = tool.index, body = body }
  promises[promise] = state
  if queue_from <= queue_to or not room_for(#body) then
    queue[queue_to + 1] = call
    calls, queue_to = id, queue_to + 1
    return promise, state
  end
  calls = id
  unlimited(send_now, call)
  return promise, state
end

local unawaited = {} -- id -> name

local function settled(state)
  if not state.ready then
    unawaited[state.id] = nil
    while not answers[state.id] do unlimited(receive_answer) end
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

-- Raise a tool's error where the function that calls this one was called. After `return tool():await()` that is
-- unknown, and the line is that of the call.
local function raise(state, value)
  if state.line and getinfo(2, "t").istailcall then error("script:" .. state.line .. ": " .. value, 0) end
  error(value, 3)
end

local function await(promise)
  local state = state_of(promise, "await", 2)
  local ok, value = settled(state)
  if not ok then raise(state, value) end
  return value
end

local function try(promise)
  return settled(state_of(promise, "try", 2))
end

local function await_all(list)
  if type(list) ~= "table" or promises[list] then
    error("await_all needs a table of calls, such as await_all{a, b}", 2)
  end
  local values, wrong, wrong_state = {}, nil, nil
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
      if not ok and not wrong then wrong, wrong_state = value, promises[item] end
      item = value
    elseif type(item) == "function" or servers[item] or (type(item) == "table" and getmetatable(item) ~= nil
      and not rawequal(item, null)) then
      error("await_all needs calls such as server.tool{...}; item " .. clean(tostring(key), 60) .. " is "
        .. (type(item) == "function" and "a function" or servers[item] and "a server" or "a table that is no call"), 2)
    end
    if item == nil then item = null end
    values[key] = item
  end
  if wrong then raise(wrong_state, wrong) end
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
  if name ~= nil and type(name) ~= "string" then error("load needs a string as the chunk's name", 2) end
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
    if type(text) ~= "string" then error("json.decode needs a string", 2) end
    local ok, value = pcall(decode, text, DECODE_DEPTH)
    if not ok then error(value, 2) end
    return value
  end,
}
local text_type = getmetatable("")
local text_functions = script.string
text_type.__metatable = false
text_type.__index = function(text, key)
  local found = text_functions[key]
  if found == nil then
    error("a text has no field " .. clean(tostring(key), 60) .. "; it is \"" .. clean(text, 60) .. "\"", 2)
  end
  return found
end

-- The run ------------------------------------------------------------------------------------------------------------

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

-- Everything above runs once, before there is a script, and is inherited by forked processes.

-- Uses what a script needs, so that a forked process copies that memory before its script arrives.
local function warm()
  local chunk = load("local t = {} for i = 1, 3 do t[i] = tostring(i) end return t", "=warm", "t", script)
  local _, value = pcall(chunk)
  decode(encode({ value = value, text = "x", number = 1.5 }, "warm", ERROR), DECODE_DEPTH)
  server_table({ name = "warm", original = "warm", tools = { { name = "warm", original = "warm" } } })
  collectgarbage()
end

local function run(source, settings)
  started = clock()
  config = decode(settings, DECODE_DEPTH)
  math.randomseed(config.seed[1], config.seed[2])
  VALUE = { bytes = config.out_bytes, depth = config.depth, nodes = config.nodes }
  for index, server in ipairs(config.servers) do
    server.index = index - 1
    local proxy = server_table(server)
    script[server.name] = proxy
    if script[server.original] == nil then script[server.original] = proxy end
  end

  local chunk, problem = load(source, "=script", "t", script)
  if not chunk then return failed("script", problem, "", "syntax") end
  if config.check then return host_send("d" .. encode({ has_value = false }, "done", ERROR)) end

  reporter = create(report_cpu)
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
    local trace = trace_of(why.trace)
    local at = line_in(trace)              -- the script's line, where the error names a line of this file
    local message = string.gsub(why.message, "^prelude:%d+: ", at and "script:" .. at .. ": " or "", 1)
    return failed(memory and "memory" or "script", message, trace, "run")
  end
  flush()
  if has_value then host_send("v" .. value_text) end
  local names = {}
  arrays[names] = true
  for id, name in next, unawaited do names[#names + 1] = name end
  sort(names)
  host_send("d" .. encode({ has_value = has_value or false, unawaited = names, cut = printed_cut,
    cpu_s = clock() - started }, "done", { bytes = 1 << 30, depth = 8, nodes = 1 << 20 }))
end

return run, warm
