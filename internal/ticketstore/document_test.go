package ticketstore

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestAValueIsTheEpochAndTheContent(t *testing.T) {
	v, err := Document{Content: []byte("a\nb"), Epoch: 18446744073709551615, ExpiresIn: time.Second}.value()
	if err != nil || string(v) != "18446744073709551615\na\nb" {
		t.Fatalf("value %q, %v", v, err)
	}
	d, err := parseValue(v)
	if err != nil || d.Epoch != 18446744073709551615 || string(d.Content) != "a\nb" {
		t.Errorf("it reads back as %+v, %v", d, err)
	}
}

func TestDocumentsThatCannotBeStored(t *testing.T) {
	for name, d := range map[string]Document{
		"epoch 0":      {Content: []byte("x"), ExpiresIn: time.Second},
		"no content":   {Epoch: 1, ExpiresIn: time.Second},
		"no expiry":    {Content: []byte("x"), Epoch: 1},
		"too large":    {Content: make([]byte, maxValue-1), Epoch: 1, ExpiresIn: time.Second},
		"negative":     {Content: []byte("x"), Epoch: 1, ExpiresIn: -time.Second},
		"microseconds": {Content: []byte("x"), Epoch: 1, ExpiresIn: 999 * time.Microsecond},
	} {
		if v, err := d.value(); err == nil {
			t.Errorf("%s: stored as %d bytes", name, len(v))
		}
	}
	if _, err := (Document{Content: make([]byte, maxValue-2), Epoch: 1, ExpiresIn: time.Second}).value(); err != nil {
		t.Errorf("the largest there is: %v", err)
	}
}

func FuzzParseValue(f *testing.F) {
	for _, seed := range []string{"", "\n", "1\nx", "0\nx", "01\nx", "+1\nx", "-1\nx", "1", "1\n", "18446744073709551616\nx", "1 \nx", "\x00\nx", "x\n1"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, v []byte) {
		d, err := parseValue(v)
		if err != nil {
			if len(v) > 8 && strings.Contains(err.Error(), string(v)) {
				t.Errorf("error %q shows the value", err)
			}
			return
		}
		d.ExpiresIn = time.Second
		if again, err := d.value(); err != nil || !bytes.Equal(again, v) {
			t.Errorf("%q is taken as epoch %d and %q, which is stored as %q (%v)", v, d.Epoch, d.Content, again, err)
		}
	})
}
