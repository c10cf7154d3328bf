package process

import (
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"
)

func TestParseStatSurvivesOddProgramNames(t *testing.T) {
	line := "42 (a) b (c) S 1 42 42 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 98765 0 0"
	state, start, err := parseStat(line)
	if err != nil || state != 'S' || start != 98765 {
		t.Errorf("state %c, start %d, %v", state, start, err)
	}
	for _, bad := range []string{"", "42", "42 (a) S 1"} {
		if _, _, err := parseStat(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestAReusedProcessIDIsAnotherProcess(t *testing.T) {
	self, err := Find(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if !self.Alive() {
		t.Error("this process is not alive")
	}
	for name, other := range map[string]ID{
		"an earlier process": {PID: self.PID, Start: self.Start - 1, Boot: self.Boot},
		"an earlier boot":    {PID: self.PID, Start: self.Start, Boot: "0"},
	} {
		if other.Alive() {
			t.Errorf("%s counts as alive", name)
		}
	}
}

func TestKillWaitsUntilTheProcessIsGoneAndIsIdempotent(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := Find(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(Descendants(os.Getpid()), id.PID) {
		t.Error("a child is not among the descendants")
	}
	for range 2 {
		if err := id.Kill(time.Minute); err != nil {
			t.Fatal(err)
		}
		if id.Alive() {
			t.Error("alive after Kill")
		}
	}
}
