// Reads lines in hexadecimal and says of each whether Node's parser takes it for a tools/call.
'use strict';
const lines = require('fs').readFileSync(0, 'latin1').split('\n').filter(Boolean);
const isCall = (value) =>
  Array.isArray(value)
    ? value.some(isCall)
    : value !== null &&
      typeof value === 'object' &&
      Object.keys(value).some(
        (name) =>
          name.toLowerCase() === 'method' &&
          typeof value[name] === 'string' &&
          value[name].trim().toLowerCase() === 'tools/call',
      );
const read = (text) => {
  try {
    return isCall(JSON.parse(text));
  } catch {
    return false;
  }
};
const out = lines.map((line) => {
  const raw = Buffer.from(line.trim(), 'hex');
  const text = raw.toString('utf8');
  return read(text) || read(text.replace(/^\uFEFF/, '')) ? '1' : '0';
});
process.stdout.write(out.join('\n') + '\n');
