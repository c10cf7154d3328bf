package runtime

import (
	"encoding/base64"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"qtls.dev/qtls/internal/tickets"
)

// showTicketKeys is HAProxy's answer about one file.
func showTicketKeys(r tickets.Ring) string {
	answer := "# id secret\n# 1 (tickets/web.keys)\n"
	for i, k := range r.Keys {
		answer += fmt.Sprintf("1.%d %s\n", i, k.Base64())
	}
	return answer + "\n"
}

func TestTicketKeys(t *testing.T) {
	ring := tickets.New(1)
	got, err := parseTicketKeys(showTicketKeys(ring))
	if err != nil || got != TicketKeys(ring.Keys) {
		t.Errorf("%v, the same: %v", err, got == TicketKeys(ring.Keys))
	}
	if _, err := parseTicketKeys("'show tls-keys' unable to locate referenced filename\n\n"); !errors.Is(err, ErrNoTicketFile) {
		t.Errorf("no such file: %v", err)
	}
	good := showTicketKeys(ring)
	second := ring.Keys[1].Base64()
	for name, answer := range map[string]string{
		"nothing":         "\n",
		"two keys":        good[:strings.Index(good, "1.2")],
		"four keys":       strings.TrimSuffix(good, "\n") + "1.3 " + second + "\n\n",
		"another order":   strings.NewReplacer("1.0", "1.1", "1.1", "1.0").Replace(good),
		"a key of 48":     strings.Replace(good, second, base64.StdEncoding.EncodeToString(make([]byte, 48)), 1),
		"a key cut short": strings.Replace(good, second, second[:50], 1),
		"something else":  "Permission denied " + second + "\n",
	} {
		_, err := parseTicketKeys(answer)
		if !errors.Is(err, errUnparsed) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), second[:8]) {
			t.Errorf("%s: the error tells a key", name)
		}
	}
}

func TestTicketFiles(t *testing.T) {
	got, err := parseTicketFiles("# id (file)\n0 (tickets/b.keys)\n1 (tickets/a.keys)\n\n")
	if err != nil || !slices.Equal(got, []string{"tickets/b.keys", "tickets/a.keys"}) {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := parseTicketFiles("# id (file)\n\n"); err != nil || len(got) > 0 {
		t.Errorf("a process without any: %q, %v", got, err)
	}
	if _, err := parseTicketFiles("Can't find the target PID matching the prefix '@!26'\n"); !errors.Is(err, errUnparsed) {
		t.Errorf("no such process: %v", err)
	}
}

func TestATicketKeyIsPushed(t *testing.T) {
	l := listen(t, func(string) string { return "TLS ticket key updated!\n\n" })
	key := tickets.NewKey()
	if err := (Admin{l.Socket}).PushTicketKey(t.Context(), "tickets/web.keys", key); err != nil {
		t.Fatal(err)
	}
	if err := (Master{l.Socket}).PushTicketKey(t.Context(), 26, "tickets/web.keys", key); err != nil {
		t.Fatal(err)
	}
	want := "set ssl tls-key tickets/web.keys " + key.Base64() + "\n"
	if l.told[0] != want || l.told[1] != "@!26 "+want {
		t.Error("HAProxy is told something else")
	}
}

func TestNoErrorTellsATicketKey(t *testing.T) {
	key := tickets.NewKey()
	refusing := listen(t, func(command string) string { return "Unknown command: " + command + "\n" })
	cut := listen(t, func(command string) string { return command })
	for name, s := range map[string]Socket{"refused": refusing.Socket, "cut": cut.Socket, "nobody there": Socket(filepath.Join(t.TempDir(), "none"))} {
		for _, err := range []error{
			Admin{s}.PushTicketKey(t.Context(), "tickets/web.keys", key),
			Master{s}.PushTicketKey(t.Context(), 26, "tickets/web.keys", key),
		} {
			if err == nil || strings.Contains(err.Error(), key.Base64()[:8]) {
				t.Errorf("%s: the error is there: %v; or it tells the key", name, err != nil)
			}
		}
	}
	var refused *Refusal
	if err := (Admin{refusing.Socket}).PushTicketKey(t.Context(), "a", key); !errors.As(err, &refused) {
		t.Errorf("a refusal: %v", err)
	}
	if err := (Admin{cut.Socket}).PushTicketKey(t.Context(), "a", key); errors.As(err, &refused) {
		t.Errorf("a cut answer is a refusal")
	}
}

// FuzzTicketKeys holds the parsers to an error that tells nothing, or to what
// the answer says.
func FuzzTicketKeys(f *testing.F) {
	f.Add(showTicketKeys(tickets.New(1)))
	f.Add("# id (file)\n0 (tickets/b.keys)\n\n")
	f.Add("'show tls-keys' unable to locate referenced filename\n\n")
	f.Fuzz(func(t *testing.T, answer string) {
		keys, err := parseTicketKeys(answer)
		if err != nil && keys != (TicketKeys{}) {
			t.Error("keys beside an error")
		}
		for _, k := range keys {
			if err == nil && !strings.Contains(answer, k.Base64()) {
				t.Error("a key that is not in the answer")
			}
		}
		files, err := parseTicketFiles(answer)
		if err == nil && slices.Contains(files, "") {
			t.Error("a file without a name")
		}
	})
}
