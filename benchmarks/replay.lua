-- Replays the requests of a file, one line each, from the first to the last and round again.

local requests = {}
local position = 0

function init(arguments)
  for line in io.lines(arguments[1]) do
    local signature, body = line:match("^(.-)\t(.*)$")
    local headers = {
      ["Service-Signature"] = signature,
      ["Content-Type"] = "application/json",
      ["User-Agent"] = "Service-Webhooks/1",
    }
    requests[#requests + 1] = wrk.format("POST", "/webhooks", headers, body)
  end
end

function request()
  position = position % #requests + 1
  return requests[position]
end
