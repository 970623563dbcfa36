-- Health of CompactionPolicy and CompactionJob for Argo CD, by the rules of kstatus.
local health = { status = "Progressing", message = "the operator has not looked at it yet" }
local status = obj.status
if status == nil or status.observedGeneration ~= obj.metadata.generation then
  return health
end
local ready = nil
for _, condition in ipairs(status.conditions or {}) do
  if condition.status == "True" and condition.type == "Stalled" then
    return { status = "Degraded", message = condition.reason .. ": " .. (condition.message or "") }
  end
  if condition.status == "True" and condition.type == "Reconciling" then
    return { status = "Progressing", message = condition.reason .. ": " .. (condition.message or "") }
  end
  if condition.type == "Ready" then
    ready = condition
  end
end
if ready == nil then
  return health
end
health.message = ready.reason .. ": " .. (ready.message or "")
if ready.reason == "Suspended" or ready.reason == "Held" or ready.reason == "ApprovalPending" then
  health.status = "Suspended" -- it rests until a person decides
elseif ready.status == "True" then
  health.status = "Healthy"
end
return health
