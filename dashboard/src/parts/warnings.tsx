// States of the node that somebody should end, each with what to do.
import { Warning_Severity as Severity, type Warning } from "../api/edgefaas/control/v1/control_pb";
import { time } from "../format";
import { href } from "../router";
import { Badge, Card, Prose } from "./basics";
import { Subject } from "./subject";

export function Warnings(props: { warnings: Warning[] }) {
    const { warnings } = props;
    if (warnings.length === 0) return null;
    return (
        <Card title="Warnings" class="warnings">
            <ul>
                {warnings.map((warning) => (
                    <li key={`${warning.code} ${warning.subject}`}>
                        <p>
                            {warning.severity === Severity.FAILING ? <Badge tone="bad">failing</Badge> : <Badge tone="warn">caution</Badge>}{" "}
                            <Prose text={warning.text} /> {warning.sinceUnixMs > 0n && <small>since {time(warning.sinceUnixMs)}</small>}
                        </p>
                        <p>
                            <small>What to do:</small> <Prose text={warning.remedy} />{" "}
                            {warning.subject && (
                                <small>
                                    Concerns: <Subject kind={warning.code} name={warning.subject} noun />
                                </small>
                            )}{" "}
                            {warning.code === "secret-missing" && <a href={href("settings", [], { app: warning.app, secret: warning.secrets[0] ?? "" })}>Set secrets</a>}
                        </p>
                    </li>
                ))}
            </ul>
        </Card>
    );
}
