package report

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"qtls.dev/qtls/internal/bench/validity"
)

// noise is text that is hardly shorter when it is compressed.
func noise(bytes int) string {
	var seed [32]byte
	random := make([]byte, bytes*3/4)
	_, _ = rand.NewChaCha8(seed).Read(random) // never fails
	return base64.StdEncoding.EncodeToString(random)
}

// names of the files in each place.
func names(places map[string]Place) map[string][]string {
	all := map[string][]string{}
	for ending, files := range places {
		all[ending] = slices.Sorted(maps.Keys(files))
	}
	return all
}

func unpacked(t *testing.T, content []byte) string {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The page, the JSON and the Markdown of a report all have its notes.
func TestAReportIsStoredInAsManyPlacesAsItNeeds(t *testing.T) {
	for name, c := range map[string]struct {
		notes string
		want  map[string][]string
	}{
		"usual":  {"", map[string][]string{"": {"report.html", "report.html.gz", "report.json", "report.json.gz", "report.md", "report.md.gz"}}},
		"larger": {noise(200 << 10), map[string][]string{"": {"report.html.gz", "report.json.gz", "report.md", "report.md.gz"}}},
		"large":  {noise(500 << 10), map[string][]string{"": {"report.html.gz", "report.json.gz"}, "-md": {"report.md.gz"}}},
		"huge":   {noise(900 << 10), map[string][]string{"": {"report.json.gz"}, "-html": {"report.html.gz"}, "-md": {"report.md.gz"}}},
	} {
		r := fullReport(t)
		r.Notes = []string{c.notes}
		places, err := r.Files()
		if err != nil {
			t.Fatal(err)
		}
		got := names(places)
		if !maps.EqualFunc(got, c.want, slices.Equal) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
		text, err := r.JSON()
		if err != nil {
			t.Fatal(err)
		}
		page, err := r.HTML()
		if err != nil {
			t.Fatal(err)
		}
		whole := map[string]string{"report.json": string(text), "report.html": page, "report.md": r.Markdown()}
		for ending, files := range places {
			size := 0
			for file, content := range files {
				size += len(content)
				said := string(content)
				if packed, ok := strings.CutSuffix(file, ".gz"); ok {
					file, said = packed, unpacked(t, content)
				}
				if said != whole[file] {
					t.Errorf("%s: %q has another %s", name, ending, file)
				}
			}
			if size > 1<<20 {
				t.Errorf("%s: %q has %d bytes", name, ending, size)
			}
		}
		if stored, ok, err := places[""].JSON(); !ok || err != nil || string(stored) != string(text) {
			t.Errorf("%s: the first place has other JSON, %v, %v", name, ok, err)
		}
	}
}

// Each repetition broke a rule in 200 KB of its own: ten of them have no room, and one
// has.
func TestAReportThatIsTooLargeIsStoredBriefly(t *testing.T) {
	var ms []Measurement
	for block := 1; block <= 10; block++ {
		ms = append(ms, busy(measured(validity.Capacity, block, 100, 1)), busy(measured(validity.Latency, block, 50, 1)))
	}
	r := build(t, ms...)
	text := noise(2000 << 10)
	for i := range 10 {
		r.Points[0].Capacity.Repetitions[i].Reasons[0].Message = text[i*200<<10:][:200<<10]
	}
	before, err := r.JSON()
	if err != nil {
		t.Fatal(err)
	}
	places, err := r.Files()
	if err != nil {
		t.Fatal(err)
	}
	stored, _, err := places[""].JSON()
	if err != nil {
		t.Fatal(err)
	}
	brief, err := Parse(stored)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(brief.Notes, []string{shortened}) || !strings.Contains(unpacked(t, places[""]["report.html.gz"]), shortened) {
		t.Errorf("it does not say so: %q", brief.Notes)
	}
	c := brief.Points[0].Capacity
	for i, one := range c.Repetitions {
		if len(one.Reasons) != 1 || one.Reasons[0].Rule != validity.MachineBusy || (one.Reasons[0].Message != "") != (i == 0) {
			t.Errorf("repetition %d: %d reasons, of %s", i+1, len(one.Reasons), one.Reasons[0].Rule)
		}
	}
	if want := r.Points[0].Capacity.Reasons(); !slices.Equal(c.Reasons(), want) {
		t.Error("what is told of all of them is something else")
	}
	if after, err := r.JSON(); err != nil || string(after) != string(before) {
		t.Errorf("the report itself has changed, %v", err)
	}

	r.Points[0].Capacity.Repetitions[0].Reasons[0].Message = text
	if places, err := r.Files(); !errors.Is(err, ErrTooLarge) || places != nil {
		t.Errorf("%v, %v, want %v", names(places), err, ErrTooLarge)
	}
	r.Points[0].Capacity.Repetitions[0].Reasons[0].Message = strings.Repeat("a", MostJSON)
	if places, err := r.Files(); !errors.Is(err, ErrTooLarge) || places != nil {
		t.Errorf("more than is ever read: %v, %v, want %v", names(places), err, ErrTooLarge)
	}
}

func TestWhatHasNoReportIsNone(t *testing.T) {
	for name, p := range map[string]Place{"nothing": {}, "others": {"report.md": []byte("#")}} {
		if text, ok, err := p.JSON(); ok || err != nil || text != nil {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	if _, ok, err := (Place{"report.json.gz": []byte("garbage")}).JSON(); !ok || err == nil {
		t.Errorf("garbage: %v, %v", ok, err)
	}
}
