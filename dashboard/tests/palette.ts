// PNG files with at most 256 colours, which take half of the space of those that a browser writes.
import { crc32, deflateSync } from "node:zlib";
import type { BrowserContext } from "@playwright/test";

interface Pixels {
    width: number;
    height: number;
    /** Red, green and blue of each colour. */
    palette: number[];
    /** Base64: the colour of each pixel. */
    pixels: string;
}

/** The picture with its 256 most frequent colours; a browser reads it. */
export async function withPalette(context: BrowserContext, png: Buffer): Promise<Buffer> {
    const page = await context.newPage();
    const { width, height, palette, pixels } = await page.evaluate(reduce, png.toString("base64"));
    await page.close();
    const colours = Buffer.from(pixels, "base64");
    const rows = Array.from({ length: height }, (_, row) => Buffer.concat([Buffer.of(0), colours.subarray(row * width, (row + 1) * width)]));
    const size = Buffer.alloc(8);
    size.writeUInt32BE(width, 0);
    size.writeUInt32BE(height, 4);
    return Buffer.concat([
        Buffer.from("\x89PNG\r\n\x1a\n", "latin1"),
        // 8 bits for each pixel, of a palette.
        chunk("IHDR", Buffer.concat([size, Buffer.of(8, 3, 0, 0, 0)])),
        chunk("PLTE", Buffer.from(palette)),
        chunk("IDAT", deflateSync(Buffer.concat(rows), { level: 9 })),
        chunk("IEND", Buffer.alloc(0)),
    ]);
}

function chunk(name: string, data: Buffer): Buffer {
    const content = Buffer.concat([Buffer.from(name, "latin1"), data]);
    const [length, check] = [Buffer.alloc(4), Buffer.alloc(4)];
    length.writeUInt32BE(data.length);
    check.writeUInt32BE(crc32(content));
    return Buffer.concat([length, content, check]);
}

/** Runs in the browser. */
async function reduce(base64: string): Promise<Pixels> {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const image = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
    const { width, height } = image;
    const canvas = new OffscreenCanvas(width, height).getContext("2d") as OffscreenCanvasRenderingContext2D;
    canvas.drawImage(image, 0, 0);
    const { data } = canvas.getImageData(0, 0, width, height);
    const at = (pixel: number) => ((data[4 * pixel] ?? 0) << 16) | ((data[4 * pixel + 1] ?? 0) << 8) | (data[4 * pixel + 2] ?? 0);
    const counts = new Map<number, number>();
    for (let pixel = 0; pixel < width * height; pixel += 1) counts.set(at(pixel), (counts.get(at(pixel)) ?? 0) + 1);
    const colours = [...counts].sort(([, one], [, other]) => other - one).slice(0, 256).map(([colour]) => colour);
    const parts = (colour: number) => [colour >> 16, (colour >> 8) & 255, colour & 255];
    const distance = (one: number, other: number) => {
        const [from, to] = [parts(one), parts(other)];
        return from.reduce((sum, part, index) => sum + (part - (to[index] ?? 0)) ** 2, 0);
    };
    const nearest = new Map(
        [...counts.keys()].map((colour) => {
            const distances = colours.map((one) => distance(colour, one));
            return [colour, distances.indexOf(Math.min(...distances))];
        }),
    );
    let pixels = "";
    for (let pixel = 0; pixel < width * height; pixel += 1) pixels += String.fromCharCode(nearest.get(at(pixel)) ?? 0);
    return { width, height, palette: colours.flatMap(parts), pixels: btoa(pixels) };
}
