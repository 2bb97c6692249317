// JSON as it is written: a number may have more digits than JavaScript keeps.

/** The text with line breaks and indentation; itself if it is no JSON. Numbers, strings and doubled keys stay as they are. */
export function pretty(text: string): string {
    try {
        JSON.parse(text);
    } catch {
        return text;
    }
    let out = "";
    let depth = 0;
    const line = () => `\n${"  ".repeat(depth)}`;
    // Strings, numbers and words are whole tokens; between the others there is white space only.
    const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
    tokens.forEach((token, at) => {
        const before = tokens[at - 1];
        if (token === "}" || token === "]") {
            depth -= 1;
            out += before === "{" || before === "[" ? token : line() + token;
            return;
        }
        if (before === "{" || before === "[" || before === ",") out += line();
        out += token === ":" ? ": " : token;
        if (token === "{" || token === "[") depth += 1;
    });
    return out;
}
