package report

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTheReferencePageOfAReport(t *testing.T) {
	got := Reference([]Source{{Path: "march/report.json", Report: fullReport(t)}})
	if diff := cmp.Diff(golden(t, "reference.md", got), got); diff != "" {
		t.Errorf("go test ./internal/bench/report -update writes it anew\n%s", diff)
	}
}

// cellOf a row and a column of the table under a heading.
func cellOf(t *testing.T, page, heading, row, column string) string {
	t.Helper()
	_, text, found := strings.Cut(page, "## "+heading+"\n")
	if !found {
		t.Fatalf("no heading %q", heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	at := -1
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		for i, c := range cells {
			if at < 0 && c == column {
				at = i
			}
		}
		if at >= 0 && strings.HasPrefix(strings.Join(cells, " | "), row+" | ") {
			return cells[at]
		}
	}
	t.Fatalf("%s has no row %q or column %q", heading, row, column)
	return ""
}

func TestTheReferencePageSaysWhatWasNotMeasured(t *testing.T) {
	empty := Reference(nil)
	for heading, at := range map[string][2]string{"Servers": {"16", "hybrid, HSM"}, "Handshakes": {"PQC only | resumed", "p99"}, "Resumption": {"classical", "resumed to full"}, "Data": {"1 MiB", "time"}} {
		if got := cellOf(t, empty, heading, at[0], at[1]); got != "not measured" {
			t.Errorf("%s: %q", heading, got)
		}
	}
	if !strings.Contains(empty, "Nowhere yet") {
		t.Error("an empty page does not say that it is one")
	}
	page := Reference([]Source{{Path: "march/report.json", Report: fullReport(t)}})
	// At 16 replicas the machine was full.
	if got := cellOf(t, page, "Servers", "16", "PQC only"); got != "measured, and no result" {
		t.Errorf("an invalid point: %q", got)
	}
	if got := cellOf(t, page, "Servers", "8", "PQC only"); !strings.HasSuffix(got, " [1]") || !strings.Contains(got, "; E ") {
		t.Errorf("a valid point: %q", got)
	}
	if got := cellOf(t, page, "Handshakes", "hybrid | full", "p99"); got != "too few handshakes" {
		t.Errorf("a percentile of too few: %q", got)
	}
	if got := cellOf(t, page, "Servers", "1", "PQC only"); strings.Contains(got, "; E ") {
		t.Errorf("an efficiency of one server, which is 1 by definition: %q", got)
	}
}

// Handshakes that are resumed are more a second: they would stand beside full ones of another size.
// Reports of before the container's CPU was told have that of HAProxy's own threads.
func TestCPUWithoutTheHSMLibrarysThreadsIsALeast(t *testing.T) {
	r := fullReport(t)
	of := func(row string) string {
		return cellOf(t, Reference([]Source{{Path: "march/report.json", Report: r}}), "Handshakes", row, "server CPU")
	}
	if got := of("hybrid, HSM | full"); strings.HasPrefix(got, "at least") || !strings.Contains(got, "s (") {
		t.Errorf("all threads: %q", got)
	}
	r.Points = slices.Clone(r.Points)
	for i, p := range r.Points {
		capacity := *p.Capacity
		capacity.Observed.LeastSeen, capacity.Observed.MostSeen = nil, nil
		r.Points[i].Capacity = &capacity
	}
	if hsm, other := of("hybrid, HSM | full"), of("hybrid | full"); !strings.HasPrefix(hsm, "at least ") || strings.HasPrefix(other, "at least ") {
		t.Errorf("an older report: %q and %q", hsm, other)
	}
}

func TestTheReferencePageHasDataOfFullHandshakes(t *testing.T) {
	r := fullReport(t)
	data := func(column string) string {
		t.Helper()
		return cellOf(t, Reference([]Source{{"a/report.json", r}}), "Data", "16 KiB", column)
	}
	for _, column := range []string{"time", "a second"} {
		if got := data(column); got != "not measured" {
			t.Errorf("%s of a mode that resumes: %q", column, got)
		}
	}
	r.Modes = slices.Clone(r.Modes)
	for i := range r.Modes {
		r.Modes[i].Resumed = false
	}
	for _, column := range []string{"time", "a second"} {
		if got := data(column); !regexp.MustCompile(`^[0-9.]+( µs)? \([0-9.]+ to [0-9.]+( µs)?\) \[1\]$`).MatchString(got) {
			t.Errorf("%s of full handshakes: %q, want it with its interval", column, got)
		}
	}
	r.Points = slices.Clone(r.Points)
	for i, p := range r.Points {
		if p.Latency != nil {
			older := *p.Latency
			older.ExchangeInterval = nil
			r.Points[i].Latency = &older
		}
	}
	if got := data("time"); !regexp.MustCompile(`^[0-9.]+ µs \[1\]$`).MatchString(got) {
		t.Errorf("the time in an older report: %q", got)
	}
}

// What one report lacks another may have, and a result comes before none.
func TestTheReferencePageTakesTheFirstResult(t *testing.T) {
	bad, good := fullReport(t), fullReport(t)
	bad.Points = append([]Point(nil), bad.Points...)
	for i := range bad.Points {
		if c := bad.Points[i].Capacity; c != nil && bad.Points[i].Mode == "hybrid-full" {
			invalid := *c
			invalid.Valid = false
			bad.Points[i].Capacity = &invalid
		}
	}
	page := Reference([]Source{{"a/report.json", bad}, {"b/report.json", good}})
	if got := cellOf(t, page, "Servers", "4", "hybrid"); !strings.HasSuffix(got, "[2]") {
		t.Errorf("hybrid: %q", got)
	}
	if got := cellOf(t, page, "Servers", "4", "classical"); !strings.HasSuffix(got, "[1]") {
		t.Errorf("classical: %q", got)
	}
}

// Replicas of another run have another size: that with most numbers of them fills the rows.
func TestTheReferencePageComparesServersOfOneRun(t *testing.T) {
	single, few, scaling := fullReport(t), fullReport(t), fullReport(t)
	single.Points = slices.DeleteFunc(slices.Clone(single.Points), func(p Point) bool { return p.Replicas != 1 })
	few.Points = slices.DeleteFunc(slices.Clone(few.Points), func(p Point) bool { return p.Replicas > 2 })
	page := Reference([]Source{{"a/report.json", single}, {"b/report.json", few}, {"c/report.json", scaling}})
	for _, row := range []string{"1", "2", "4"} {
		if got := cellOf(t, page, "Servers", row, "hybrid"); !strings.HasSuffix(got, "[3]") {
			t.Errorf("%s servers: %q", row, got)
		}
	}
	if got := cellOf(t, page, "Handshakes", "hybrid | full", "a second"); !strings.HasSuffix(got, "[1]") {
		t.Errorf("one server: %q", got)
	}
}

func TestWhatAModeIsInTheReferencePage(t *testing.T) {
	for name, c := range map[string]struct {
		mode Mode
		want []string
	}{
		"hybrid":                       {Mode{Groups: []string{"X25519MLKEM768", "SecP384r1MLKEM1024"}, SignatureSchemes: []string{"mldsa65"}}, []string{"hybrid"}},
		"in an HSM":                    {Mode{Groups: []string{"X25519MLKEM768"}, SignatureSchemes: []string{"mldsa65"}, HSM: true}, []string{"hybrid, HSM"}},
		"PQC only":                     {Mode{Groups: []string{"MLKEM1024"}, SignatureSchemes: []string{"mldsa87"}}, []string{"PQC only"}},
		"classical":                    {Mode{Groups: []string{"secp256r1"}, SignatureSchemes: []string{"rsa_pss_rsae_sha256"}}, []string{"classical"}},
		"groups of two kinds":          {Mode{Groups: []string{"X25519MLKEM768", "x25519"}, SignatureSchemes: []string{"mldsa65"}}, nil},
		"a hybrid, classically signed": {Mode{Groups: []string{"X25519MLKEM768"}, SignatureSchemes: []string{"ecdsa_secp256r1_sha256"}}, nil},
		"another family's":             {Mode{Groups: []string{"smaug_t1"}, SignatureSchemes: []string{"haetae2"}}, nil},
		"nothing":                      {Mode{}, nil},
	} {
		var got []string
		for _, k := range referenceKinds {
			if k.is(c.mode) {
				got = append(got, k.name)
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestTheReferencePageSaysWhatResumptionSaves(t *testing.T) {
	r := fullReport(t)
	r.Modes = append([]Mode(nil), r.Modes...)
	for i := range r.Modes {
		r.Modes[i].Transfer = 0
	}
	page := Reference([]Source{{"a/report.json", r}})
	got := cellOf(t, page, "Resumption", "hybrid", "resumed to full")
	if !strings.HasPrefix(got, "2.5") { // 104 to 41
		t.Errorf("hybrid: %q", got)
	}
	if got := cellOf(t, page, "Resumption", "classical", "resumed to full"); got != "not measured" {
		t.Errorf("classical: %q", got)
	}
	r.Points = slices.Clone(r.Points)
	for i, p := range r.Points {
		if p.Mode == "hybrid-full" && p.Capacity != nil {
			invalid := *p.Capacity
			invalid.Valid = false
			r.Points[i].Capacity = &invalid
		}
	}
	if got := cellOf(t, Reference([]Source{{"a/report.json", r}}), "Resumption", "hybrid", "resumed to full"); got != "measured, and no result" {
		t.Errorf("hybrid, where the full ones are no result: %q", got)
	}
}
