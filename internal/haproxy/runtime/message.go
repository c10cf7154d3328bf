package runtime

import (
	"regexp"
	"strings"
)

// Refusal says that HAProxy took a command and would not do it. Nothing has
// changed, and the same command would be refused again. Any other error may
// pass: of a process that is just being restarted, for one.
type Refusal struct {
	// Message is HAProxy's own.
	Message string
}

func (r *Refusal) Error() string { return r.Message }

// maxMessage bounds a message, in bytes: it ends in a condition of the API.
const maxMessage = 1024

// prefix of HAProxy's start-up messages: level and process.
var prefix = regexp.MustCompile(`^\[(ALERT|WARNING|NOTICE)\]\s+\(\d+\) : (config : )?`)

// treePath is where a configuration lies; what matters is the file in it.
var treePath = regexp.MustCompile(`/[\w./-]*/(haproxy|backends)\.cfg`)

// summaries tell only that there were errors before them.
var summaries = []string{
	"Error(s) found in configuration file",
	"Fatal errors found in configuration",
}

// Message is what HAProxy says was wrong, out of its output: its alerts, one
// to a line, without what repeats in each, at most 1024 bytes. Without alerts
// it is the last lines of the output.
func Message(output string) string {
	var alerts, all []string
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		text := treePath.ReplaceAllString(prefix.ReplaceAllString(line, ""), "$1.cfg")
		all = append(all, text)
		if strings.HasPrefix(line, "[ALERT]") && !isSummary(text) {
			alerts = append(alerts, text)
		}
	}
	if len(alerts) == 0 {
		alerts = all[max(0, len(all)-5):]
	}
	if len(alerts) == 0 {
		return "HAProxy gave no reason"
	}
	return bounded(strings.Join(alerts, "\n"))
}

func isSummary(text string) bool {
	for _, s := range summaries {
		if strings.HasPrefix(text, s) {
			return true
		}
	}
	return false
}

func bounded(text string) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= maxMessage {
		return text
	}
	const more = " [...]"
	return strings.ToValidUTF8(text[:maxMessage-len(more)], "") + more
}
