package schedule

import (
	"slices"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC) // a Monday

func parse(t *testing.T, expression, zone string) Schedule {
	t.Helper()
	s, err := Parse(expression, zone)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAScheduleIsThatOfCron(t *testing.T) {
	for _, c := range []struct{ expression, zone, next string }{
		{"0 3 * * 2", "", "2026-06-02T03:00:00Z"},
		{"0 3 * * 2", "Europe/Berlin", "2026-06-02T01:00:00Z"},
		{"*/15 * * * *", "", "2026-06-01T12:15:00Z"},
		{"@daily", "Asia/Tokyo", "2026-06-01T15:00:00Z"},
		{"0 0 29 2 *", "", "2028-02-29T00:00:00Z"},
	} {
		if got := parse(t, c.expression, c.zone).Next(noon).Format(time.RFC3339); got != c.next {
			t.Errorf("%s in %q: %s, want %s", c.expression, c.zone, got, c.next)
		}
	}
}

// As a CronJob: of the hour that there is not in spring nothing is made, and of the one that
// there is twice in autumn all is made twice.
func TestClocksThatAreSetForwardSkipATimeAndBackRepeatIt(t *testing.T) {
	s := parse(t, "30 2 * * *", "Europe/Berlin")
	for _, c := range []struct {
		after time.Time
		want  []string
	}{
		{time.Date(2026, 3, 27, 12, 0, 0, 0, time.UTC), []string{"2026-03-28T01:30:00Z", "2026-03-30T00:30:00Z", "2026-03-31T00:30:00Z"}},
		{time.Date(2026, 10, 24, 12, 0, 0, 0, time.UTC), []string{"2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-26T01:30:00Z"}},
	} {
		names := map[string]bool{}
		for i, at := 0, c.after; i < len(c.want); i++ {
			if at = s.Next(at); at.Format(time.RFC3339) != c.want[i] {
				t.Errorf("%s, want %s", at.Format(time.RFC3339), c.want[i])
			}
			names[Name("nightly", at)] = true
		}
		if len(names) != len(c.want) { // each has a name of its own
			t.Errorf("names %v", names)
		}
	}
}

func TestABadScheduleNamesFieldValueAndRemedy(t *testing.T) {
	for _, c := range []struct{ expression, zone, says string }{
		{"0 3 * *", "", `spec.schedule: "0 3 * *": expected exactly 5 fields`},
		{"61 3 * * *", "", `spec.schedule: "61 3 * * *": end of range (61) above maximum (59)`},
		{"", "", `spec.schedule: ""`},
		{"TZ=UTC 0 3 * * *", "", "give that as spec.timeZone"},
		{"CRON_TZ=UTC", "", "give that as spec.timeZone"},
		{"@every 1h", "", "@every has no times of its own"},
		{"@sometimes", "", "unrecognized descriptor"},
		{"0 0 30 2 *", "", "that day never comes"},
		{"@daily", "Europe/Bonn", `spec.timeZone: "Europe/Bonn" is no name of a time zone`},
		{"@daily", "Local", `spec.timeZone: "Local"`},
		{"@daily", "../../etc/passwd", `spec.timeZone`},
	} {
		_, err := Parse(c.expression, c.zone)
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "; give") {
			t.Errorf("%q in %q: %v, want %q and a remedy", c.expression, c.zone, err, c.says)
		}
	}
}

func TestTheLastTimeIsFoundHoweverManyWereMissed(t *testing.T) {
	for _, c := range []struct {
		expression  string
		after, want time.Time
		none        bool
	}{
		{"* * * * *", noon.AddDate(-3, 0, 0), noon, false},
		{"0 3 * * *", noon.AddDate(0, -6, 0), noon.Add(-9 * time.Hour), false},
		{"0 3 * * *", noon.Add(-9 * time.Hour), time.Time{}, true}, // it is not after itself
		{"0 12 * * *", noon.Add(-time.Second), noon, false},
		{"0 0 29 2 *", noon.AddDate(-4, 0, 0), time.Date(2024, 2, 29, 0, 0, 0, 0, time.UTC), false},
		{"0 0 29 2 *", noon.AddDate(-1, 0, 0), time.Time{}, true},
		{"0 12 * * *", noon.Add(time.Hour), time.Time{}, true},
	} {
		got, found := parse(t, c.expression, "").Last(c.after, noon)
		if found == c.none || !got.Equal(c.want) {
			t.Errorf("%s after %s: %s, %v; want %s", c.expression, c.after, got, found, c.want)
		}
	}
}

// daily is a schedule of 3 o'clock, of which the runs of the days before are there,
// 1 for yesterday's.
func daily(days int, change func(day int, r *Run)) State {
	o := State{Now: noon, Last: noon.AddDate(0, 0, -100), Noted: noon, Successful: 3, Failed: 1}
	for day := days; day >= 1; day-- {
		at := noon.AddDate(0, 0, -day).Add(-9 * time.Hour)
		r := Run{Name: Name("nightly", at), At: at, Over: true, Completed: true, Good: true}
		change(day, &r)
		o.Runs = append(o.Runs, r)
	}
	return o
}

func day(n int) string { return Name("nightly", noon.AddDate(0, 0, -n).Add(-9*time.Hour)) }

func TestWhatIsDueIsMadeOnce(t *testing.T) {
	s := parse(t, "0 3 * * *", "")
	today := noon.Add(-9 * time.Hour)
	for name, c := range map[string]struct {
		change  func(*State)
		make    time.Time
		waiting time.Time
		next    time.Time
	}{
		"today's is due":                     {func(*State) {}, today, time.Time{}, today.AddDate(0, 0, 1)},
		"it is suspended":                    {func(o *State) { o.Suspended = true }, time.Time{}, time.Time{}, time.Time{}},
		"yesterday's still runs":             {func(o *State) { o.Runs[len(o.Runs)-1].Over = false }, time.Time{}, today, time.Time{}},
		"it was made":                        {func(o *State) { o.Last = today }, time.Time{}, time.Time{}, today.AddDate(0, 0, 1)},
		"it was made, and nobody noted that": {func(o *State) { o.Runs = append(o.Runs, Run{Name: "now", At: today, Over: true}) }, time.Time{}, time.Time{}, today.AddDate(0, 0, 1)},
		"it is too late":                     {func(o *State) { o.Deadline = 8 * time.Hour }, time.Time{}, time.Time{}, today.AddDate(0, 0, 1)},
		"it is late":                         {func(o *State) { o.Deadline = 10 * time.Hour }, today, time.Time{}, today.AddDate(0, 0, 1)},
	} {
		o := daily(2, func(int, *Run) {})
		c.change(&o)
		if d := s.Decide(o); !d.Make.Equal(c.make) || !d.Waiting.Equal(c.waiting) || !d.Next.Equal(c.next) {
			t.Errorf("%s: %+v", name, d)
		}
	}
	// After a year without an operator one is made, and not 365.
	o := State{Now: noon, Last: noon.AddDate(-1, 0, 0)}
	d := s.Decide(o)
	o.Last = d.Make
	if again := s.Decide(o); !d.Make.Equal(today) || !again.Make.IsZero() {
		t.Errorf("%+v, and then %+v", d, again)
	}
	// The same time has the same name in any time zone.
	if a, b := Name("nightly", today), Name("nightly", today.In(time.FixedZone("x", 3600))); a != b || len(a) > len("nightly")+9 {
		t.Errorf("%s and %s", a, b)
	}
}

func TestTheOldestAreDeleted(t *testing.T) {
	s := parse(t, "0 3 * * *", "")
	o := daily(9, func(day int, r *Run) { r.Completed = day%2 == 1 }) // 1, 3, 5, 7, 9 completed
	if d, want := s.Decide(o), []string{day(9), day(8), day(7), day(6), day(4)}; !slices.Equal(d.Delete, want) {
		t.Errorf("%q, want %q", d.Delete, want)
	}
	o.Failed, o.Runs[8].Over = 0, false
	if d, want := s.Decide(o), []string{day(9), day(8), day(6), day(4), day(2)}; !slices.Equal(d.Delete, want) || d.Active != day(1) {
		t.Errorf("%+v, want %q", d, want)
	}
	// One whose time the status does not have could be made again.
	o.Noted = noon.AddDate(0, 0, -7)
	if d, want := s.Decide(o), []string{day(9), day(8)}; !slices.Equal(d.Delete, want) {
		t.Errorf("%q, want %q", d.Delete, want)
	}
}

func TestTheBaselineIsTheLastGoodOneAndIsKept(t *testing.T) {
	s := parse(t, "0 3 * * *", "")
	o := daily(6, func(day int, r *Run) { r.Good = day >= 5 })
	if d := s.Decide(o); d.Baseline != "" || !slices.Equal(d.Delete, []string{day(6), day(5), day(4)}) {
		t.Errorf("nobody asks for it: %+v", d)
	}
	o.Previous = true
	if d := s.Decide(o); d.Baseline != day(5) || !slices.Equal(d.Delete, []string{day(6), day(4)}) {
		t.Errorf("%+v", d)
	}
	o = daily(3, func(_ int, r *Run) { r.Good = false })
	o.Previous = true
	if d := s.Decide(o); d.Baseline != "" || d.Make.IsZero() {
		t.Errorf("there is none yet: %+v", d)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"0 3 * * *", "@daily", "*/5 1-3,4 1 JAN mon", "TZ= 0", "? ? ? ? ?", "@every"} {
		f.Add(s, "")
	}
	f.Add("0 3 * * *", "Europe/Berlin")
	f.Fuzz(func(t *testing.T, expression, zone string) {
		s, err := Parse(expression, zone)
		if err != nil {
			return
		}
		next := s.Next(noon)
		if !next.After(noon) && !next.IsZero() {
			t.Errorf("%q: the time after %s is %s", expression, noon, next)
		}
	})
}
