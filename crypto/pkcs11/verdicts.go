// Package pkcs11 is what Go reads of the PKCS#11 module next to it.
package pkcs11

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
)

//go:embed verdicts.csv
var verdicts string

// Verdict says whose fault an error of PKCS #11 is, and so who tries again.
type Verdict string

// The verdicts; the module's README says what follows from each.
const (
	// Request is at fault: every member of a pool would say the same.
	Request Verdict = "Request"
	// Session or its login is gone.
	Session Verdict = "Session"
	// Handle of an object is not valid any more, or the object is not there.
	Handle Verdict = "Handle"
	// Unable is a member that is well, and has no room for the request, a rule
	// against it, or a key or mechanism that does not fit.
	Unable Verdict = "Unable"
	// PIN was refused.
	PIN Verdict = "Pin"
	// Device failed, or its library. So did one whose code is not in the table.
	Device Verdict = "Device"
)

// Error is a code of PKCS #11 (CK_RV) that has a name.
type Error struct {
	Code    uint64
	Name    string
	Verdict Verdict
	// Why it has that verdict.
	Why string
}

// Errors are the rows of verdicts.csv.
var Errors = parse(verdicts)

// parse panics where the table, which is a part of the program, is wrong.
func parse(table string) (all []Error) {
	_, rows, _ := strings.Cut(table, "\n")
	for line := range strings.Lines(rows) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), ",")
		if len(fields) != 4 {
			panic(fmt.Sprintf("verdicts.csv: %q has %d fields, want 4", line, len(fields)))
		}
		code, err := strconv.ParseUint(fields[0], 0, 64)
		if err != nil {
			panic(fmt.Sprintf("verdicts.csv: %q: %v", line, err))
		}
		switch v := Verdict(fields[2]); v {
		case Request, Session, Handle, Unable, PIN, Device:
			all = append(all, Error{code, fields[1], v, fields[3]})
		default:
			panic(fmt.Sprintf("verdicts.csv: %q: there is no verdict %q", line, v))
		}
	}
	return all
}
