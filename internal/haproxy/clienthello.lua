-- Reads the ClientHello (RFC 8446, 4.1.2) at the head of a connection, for
-- what HAProxy itself does not tell: signature_algorithms_cert, the curves that
-- ECDSA keys may have in TLS 1.2, and hellos that come in several TLS records. It
-- is also what refuses a server name where no certificate is at hand for a TLS
-- bind to do so.
--
-- It never raises an error, and its work is bounded: max_records records of at
-- most max_hello bytes altogether, looked at again when more has come.

local max_hello = 49152 -- bytes; one with the largest key share, of FrodoKEM-1344, has 23,000
local max_records = 64
local wait = 2900 -- milliseconds that a hello has, a little less than inspect-delay

-- ecdsa_scheme by the group that its keys are of: ecdsa_secp256r1_sha256 and so on.
local ecdsa_scheme = { [0x0017] = "\4\3", [0x0018] = "\5\3", [0x0019] = "\6\3" }

local function u16(s, i)
  local high, low = s:byte(i, i + 1)
  return high * 256 + low
end

-- gather returns the ClientHello message out of the records at the head of
-- data; or nil and whether more data may complete it.
local function gather(data)
  local parts, length, need, at = {}, 0, nil, 1
  for n = 1, max_records do
    if #data < at + 4 then return nil, true end
    local kind, major = data:byte(at, at + 1)
    local size = u16(data, at + 3)
    if kind ~= 22 or major ~= 3 or size == 0 or size > 16384 then return nil, false end
    -- The first byte may already show that it is another message.
    if n == 1 and #data >= at + 5 and data:byte(at + 5) ~= 1 then return nil, false end
    if #data < at + 4 + size then return nil, true end
    parts[n] = data:sub(at + 5, at + 4 + size)
    length, at = length + size, at + 5 + size
    if not need and length >= 4 then
      local head = n == 1 and parts[1] or table.concat(parts)
      need = 4 + head:byte(2) * 65536 + u16(head, 3)
      if need > max_hello then return nil, false end
    end
    if need and length >= need then
      local message = n == 1 and parts[1] or table.concat(parts)
      return message:sub(1, need)
    end
  end
  return nil, false
end

-- vector returns the first and last index of the content of a vector whose
-- length stands in `bytes` bytes at i, or nil when it does not end by last.
local function vector(s, i, bytes, last)
  if i + bytes - 1 > last then return nil end
  local size = bytes == 1 and s:byte(i) or u16(s, i)
  local first = i + bytes
  if first + size - 1 > last then return nil end
  return first, first + size - 1
end

-- parse returns what the message says, or nil when it is malformed:
--   name          the server name, in lower case; "" without one
--   schemes       the list of signature_algorithms, two bytes each; "" without.
--                 In TLS 1.2 a scheme of ECDSA names no curve, and that of the
--                 key has to be in supported_groups (RFC 8422, 5.1): where the
--                 client sends those, schemes of other curves are left out
--   cert_schemes  the list of signature_algorithms_cert, or else schemes
--   tls13         whether the client supports TLS 1.3
local function parse(s)
  local last = #s
  local _, stop = vector(s, 4 + 2 + 32 + 1, 1, last) -- after header, version, random: the session ID
  if not stop then return nil end
  _, stop = vector(s, stop + 1, 2, last) -- cipher suites
  if not stop then return nil end
  _, stop = vector(s, stop + 1, 1, last) -- compression methods
  if not stop then return nil end
  local hello = { name = "", schemes = "", tls13 = false }
  if stop == last then
    hello.cert_schemes = ""
    return hello -- a client of TLS 1.2 may send no extensions
  end
  local i, final = vector(s, stop + 1, 2, last)
  if not i then return nil end
  local seen, unusable = {}, {}
  while i <= final do
    if i + 3 > final then return nil end
    local kind = u16(s, i)
    local from, to = vector(s, i + 2, 2, final)
    if not from or seen[kind] then return nil end
    seen[kind] = true
    if kind == 0 then -- server_name (RFC 6066, 3)
      local entry, entries = vector(s, from, 2, to)
      if not entry or entry > entries or s:byte(entry) ~= 0 then return nil end
      local a, b = vector(s, entry + 1, 2, entries)
      if not a then return nil end
      hello.name = s:sub(a, b):lower()
    elseif kind == 10 then -- supported_groups
      local a, b = vector(s, from, 2, to)
      if not a or (b - a + 1) % 2 == 1 then return nil end
      for _, scheme in pairs(ecdsa_scheme) do unusable[scheme] = "" end
      for k = a, b - 1, 2 do
        local scheme = ecdsa_scheme[u16(s, k)]
        if scheme then unusable[scheme] = nil end
      end
    elseif kind == 13 or kind == 50 then -- signature_algorithms, signature_algorithms_cert
      local a, b = vector(s, from, 2, to)
      if not a or (b - a + 1) % 2 == 1 then return nil end
      hello[kind == 13 and "schemes" or "cert_schemes"] = s:sub(a, b)
    elseif kind == 43 then -- supported_versions
      local a, b = vector(s, from, 1, to)
      if not a then return nil end
      for k = a, b - 1, 2 do
        if u16(s, k) == 0x0304 then hello.tls13 = true end
      end
    end
    i = to + 1
  end
  hello.cert_schemes = hello.cert_schemes or hello.schemes
  if not hello.tls13 then hello.schemes = hello.schemes:gsub("..", unusable) end
  return hello
end

-- read returns what the ClientHello at the head of data says; or nil and
-- whether more data may complete it.
local function read(data)
  local message, more = gather(data)
  if not message then return nil, more end
  return parse(message), false
end

if core then
  -- read_client_hello leaves in variables what parse returns. A hello that it
  -- cannot read leaves none; one that is not complete is waited for, as long as
  -- inspect-delay lets it.
  core.register_action("read_client_hello", { "tcp-req" }, function(txn)
    local channel = txn.req
    local data = channel:input() > 0 and channel:data() or ""
    local hello, more = read(data)
    -- HAProxy writes a warning when asked to wait beyond inspect-delay.
    if more and channel:may_recv() and txn.f:date(0, "ms") - txn.f:accept_date("ms") < wait then return act.YIELD end
    if hello then
      txn:set_var("txn.name", hello.name)
      txn:set_var("txn.schemes", hello.schemes)
      txn:set_var("txn.cert_schemes", hello.cert_schemes)
      txn:set_var("txn.tls13", hello.tls13)
    end
    return act.CONTINUE
  end, 0)

  -- unrecognized_name answers with that alert (RFC 6066, 3), in the clear, as
  -- a server does that has not chosen its keys yet.
  core.register_service("unrecognized_name", "tcp", function(applet)
    applet:send("\21\3\3\0\2\2\112")
  end)
end

return { read = read }
