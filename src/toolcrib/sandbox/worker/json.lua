-- JSON encoding and decoding for prelude.lua, with null, empty arrays, and the values that must not be sent.
--
-- Everything used later is a local here, for the reason given in prelude.lua.

local error, next, rawequal, rawget, setmetatable, tonumber, tostring, type = error, next, rawequal, rawget, setmetatable,
  tonumber, tostring, type
local byte, char, find, format, gsub, match, sub = string.byte, string.char, string.find, string.format, string.gsub,
  string.match, string.sub
local concat, sort = table.concat, table.sort
local math_type, to_integer, huge = math.type, math.tointeger, math.huge
local utf8_len, utf8_char = utf8.len, utf8.char

local WEAK = { __mode = "k" }

local function locked(name, fields)
  fields = fields or {}
  fields.__name, fields.__metatable = name, false
  return fields
end

local null = setmetatable({}, locked("null", {
  __tostring = function() return "null" end,
  __newindex = function() error("null cannot be changed", 2) end,
}))
local arrays = setmetatable({}, WEAK) -- tables that are arrays even if empty
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

-- Valid UTF-8 of at most `limit` bytes, for any input.
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

-- The value as JSON; `limits` has bytes, depth and nodes. Errors are strings that begin with the path.
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
        fail(depth - 1, "has a key that is a " .. (kind or type(key)) .. "; keys must be strings or whole numbers")
      end
      local text = kind and format("%d", key) or key
      if texts[text] ~= nil then fail(depth - 1, "has both the number and the string " .. text .. " as keys") end
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

-- The value of a JSON text. Null becomes nil in an object, and the value `null` in an array.
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
    if dot == "" and exponent == "" and math_type(value) == "float" then return literal end -- keep it exact, as a string
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

return {
  locked = locked, null = null, arrays = arrays, promises = promises, servers = servers, clean = clean, encode = encode,
  decode = decode,
}
