// SPDX-License-Identifier: Apache-2.0
// llama.cpp: tokens of a language model, one after the other, whose weights are mapped; with its own switch, read into memory. The
// model is a file of random weights: what a token costs does not depend on their values. The words are those of reader.h.
// LLAMA names the folder in which node-llama-cpp is installed.
import {closeSync, openSync, writeSync} from "node:fs";
import {createRequire} from "node:module";
import {join} from "node:path";
import {pathToFileURL} from "node:url";

const WIDTH = 1024, HIDDEN = 4096, BLOCKS = 8, HEADS = 16, VOCABULARY = 4096;
const TOKENS = 40;
const ALIGNMENT = 32;
// Of GGUF, version 3: types of values, and of tensors.
const U32 = 4, F32 = 6, STRING = 8, ARRAY = 9;
const FLOATS = {type: 0, bytes: 4}, HALVES = {type: 1, bytes: 2};

function tensors() {
    const halves = (name, ...shape) => ({name, shape, kind: HALVES});
    const norm = (name) => ({name, shape: [WIDTH], kind: FLOATS});
    const all = [halves("token_embd.weight", WIDTH, VOCABULARY)];
    for (let n = 0; n < BLOCKS; n++) {
        const of = (name) => `blk.${n}.${name}.weight`;
        all.push(norm(of("attn_norm")), norm(of("ffn_norm")));
        for (const name of ["attn_q", "attn_k", "attn_v", "attn_output"]) all.push(halves(of(name), WIDTH, WIDTH));
        all.push(halves(of("ffn_gate"), WIDTH, HIDDEN), halves(of("ffn_up"), WIDTH, HIDDEN), halves(of("ffn_down"), HIDDEN, WIDTH));
    }
    return [...all, norm("output_norm.weight"), halves("output.weight", WIDTH, VOCABULARY)];
}

// The bytes of the parts of a header.
const number = (bytes, write) => { const buffer = Buffer.alloc(bytes); write(buffer); return buffer; };
const u32 = (value) => number(4, (buffer) => buffer.writeUInt32LE(value));
const u64 = (value) => number(8, (buffer) => buffer.writeBigUInt64LE(BigInt(value)));
const f32 = (value) => number(4, (buffer) => buffer.writeFloatLE(value));
const string = (value) => Buffer.concat([u64(Buffer.byteLength(value)), Buffer.from(value)]);
const array = (type, values, bytes) => Buffer.concat([u32(type), u64(values.length), ...values.map(bytes)]);
const padding = (at) => Buffer.alloc((ALIGNMENT - at % ALIGNMENT) % ALIGNMENT);

function metadata() {
    // Byte tokens, as a vocabulary needs them, and words that nobody uses.
    const words = ["<unk>", "<s>", "</s>"];
    for (let byte = 0; byte < 256; byte++) words.push(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`);
    while (words.length < VOCABULARY) words.push(`w${words.length}`);
    const kind = (n) => n === 0 ? 2 : n < 3 ? 3 : n < 259 ? 6 : 1;
    const numbers = {
        context_length: 512, embedding_length: WIDTH, block_count: BLOCKS, feed_forward_length: HIDDEN,
        "attention.head_count": HEADS, "attention.head_count_kv": HEADS, "rope.dimension_count": WIDTH / HEADS,
        vocab_size: VOCABULARY,
    };
    return [
        ["general.architecture", STRING, string("llama")],
        ["general.file_type", U32, u32(1)],
        ...Object.entries(numbers).map(([name, value]) => [`llama.${name}`, U32, u32(value)]),
        ["llama.attention.layer_norm_rms_epsilon", F32, f32(1e-5)],
        ["tokenizer.ggml.model", STRING, string("llama")],
        ["tokenizer.ggml.tokens", ARRAY, array(STRING, words, string)],
        ["tokenizer.ggml.scores", ARRAY, array(F32, words, (_, n) => f32(-n))],
        ["tokenizer.ggml.token_type", ARRAY, array(U32 + 1, words, (_, n) => u32(kind(n)))],
        ["tokenizer.ggml.bos_token_id", U32, u32(1)],
        ["tokenizer.ggml.eos_token_id", U32, u32(2)],
    ];
}

function make(path) {
    const file = openSync(path, "w");
    let written = 0;
    const put = (bytes) => { written += writeSync(file, bytes); };
    const all = tensors(), about = metadata();
    put(Buffer.concat([Buffer.from("GGUF"), u32(3), u64(all.length), u64(about.length)]));
    for (const [name, type, value] of about) put(Buffer.concat([string(name), u32(type), value]));
    let at = 0;
    for (const {name, shape, kind} of all) {
        put(Buffer.concat([string(name), u32(shape.length), ...shape.map(u64), u32(kind.type), u64(at)]));
        at += shape.reduce((a, b) => a * b) * kind.bytes;
        at += padding(at).length;
    }
    put(padding(written));
    let state = 31;
    const draw = () => (state = Math.imul(state, 1664525) + 1013904223 >>> 0) >>> 16;
    for (const {shape, kind} of all) {
        const count = shape.reduce((a, b) => a * b);
        // Halves of either sign between 1/128 and 1/64.
        const values = kind === FLOATS ? new Float32Array(count).fill(1) : Uint16Array.from({length: count}, () => draw() & 0x83ff | 0x2000);
        const bytes = Buffer.from(values.buffer);
        for (let from = 0; from < bytes.length; from += 1 << 20) put(bytes.subarray(from, from + (1 << 20)));
        put(padding(written));
    }
    closeSync(file);
}

async function read(path, useMmap) {
    const library = createRequire(join(process.env.LLAMA, "node_modules", "x")).resolve("node-llama-cpp");
    const {getLlama} = await import(pathToFileURL(library));
    const llama = await getLlama({gpu: false, build: "never", logLevel: "error", maxThreads: 1});
    const model = await llama.loadModel({modelPath: path, useMmap, gpuLayers: 0});
    const context = await model.createContext({contextSize: 256, threads: 1});
    const sequence = context.getSequence();
    for (let n = 0; n < TOKENS; n++) await sequence.evaluateWithoutGeneratingNewTokens([300 + n]);
    console.log(sequence.contextTokens.length);
    process.stdin.resume().on("end", () => process.exit());
}

const [command, folder] = process.argv.slice(2);
const path = join(folder, "model.gguf");
if (command === "make") make(path);
else await read(path, command !== "own");
