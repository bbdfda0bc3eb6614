// Perfetto's trace processor, as its own page runs it (engine_bundle.js and its .wasm, in FOLDER), for a program at the
// other end of a pipe: requests of its RPC stream come on stdin, its answers go to stdout.
//
//     node trace_processor.js FOLDER
'use strict';
const fs = require('fs');
const path = require('path');
const vm = require('vm');

const folder = process.argv[2];

function answer(bytes) {
  for (let at = 0; at < bytes.length;) at += fs.writeSync(1, bytes, at);
}

class FileRequest {
  open(method, url) {
    this.file = path.join(folder, path.basename(url));
  }
  send() {
    this.response = fs.readFileSync(this.file);
  }
}

// A page's worker has these, and it must not find out that it is not in one.
const worker = {
  TextDecoder, TextEncoder, URL, performance, setTimeout,
  console: {log() {}, warn() {}, error: console.error},
  crypto: globalThis.crypto,
  importScripts() {},
  location: {href: 'https://localhost/engine_bundle.js'},
  WorkerGlobalScope: class {},
  XMLHttpRequest: FileRequest,
};
worker.self = worker.globalThis = worker;
vm.createContext(worker);
vm.runInContext(fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8'), worker);

const WorkersBytes = vm.runInContext('Uint8Array', worker);
const port = {postMessage: answer};
worker.onmessage({data: port});
setImmediate(() => {
  process.stdin.on('data', bytes => port.onmessage({data: new WorkersBytes(bytes)}));
  process.stdin.on('end', () => process.exit(0));
});
