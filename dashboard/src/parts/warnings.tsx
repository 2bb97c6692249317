// States of the node that somebody should end, each with what to do.
import { Warning_Severity as Severity, type Warning } from "../api/edgefaas/control/v1/control_pb";
import { time } from "../format";
import { href } from "../router";
import { Badge, Card } from "./basics";
import { Subject } from "./subject";

export function Warnings(props: { warnings: Warning[] }) {
    if (props.warnings.length === 0) return null;
    return (
        <Card title="Warnings" class="warnings">
            <ul>
                {props.warnings.map((warning) => (
                    <li key={`${warning.code} ${warning.subject}`}>
                        <p>
                            {warning.severity === Severity.FAILING ? <Badge tone="bad">failing</Badge> : <Badge tone="warn">caution</Badge>}{" "}
                            {warning.subject && (
                                <strong>
                                    <Subject kind={warning.code} name={warning.subject} />
                                </strong>
                            )}{" "}
                            {warning.text}
                        </p>
                        <p>
                            {warning.remedy} {warning.code === "secret-missing" && <a href={href("settings")}>Set secrets</a>} {warning.sinceUnixMs > 0n && <small>Since {time(warning.sinceUnixMs)}.</small>}
                        </p>
                    </li>
                ))}
            </ul>
        </Card>
    );
}
