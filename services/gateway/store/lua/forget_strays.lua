-- Forgets that jobs were taken over, but for those that were taken over anew. ARGV: pairs of id and when, as in `strays`.
for place = 1, #ARGV, 2 do
  if redis.call('ZSCORE', P .. 'strays', ARGV[place]) == ARGV[place + 1] then
    redis.call('ZREM', P .. 'strays', ARGV[place])
  end
end
return {}
