package ticketstore

import (
	"bytes"
	"fmt"
	"strconv"
	"time"
)

// Document is a sealed ring as it is stored. The store looks at its epoch only.
type Document struct {
	Content []byte
	// Epoch tells which of two documents is the newer.
	Epoch uint64
	// ExpiresIn is for how long the store keeps it. Read has taken off what the
	// answer took, so that it never ends later here than there.
	ExpiresIn time.Duration
}

// maxValue is the most that a value may take; a sealed ring takes some hundred
// bytes.
const maxValue = 16 << 10

// value is the epoch, in decimal, on a line of its own, then the content: the
// epoch has to be readable to who cannot open the content.
func (d Document) value() ([]byte, error) {
	v := strconv.AppendUint(nil, d.Epoch, 10)
	v = append(append(v, '\n'), d.Content...)
	switch {
	case d.Epoch == 0:
		return nil, fmt.Errorf("epoch 0: the first is 1")
	case len(d.Content) == 0:
		return nil, fmt.Errorf("it has no content")
	case len(v) > maxValue:
		return nil, fmt.Errorf("it takes %d bytes, more than %d", len(v), maxValue)
	case d.ExpiresIn < time.Millisecond:
		return nil, fmt.Errorf("it expires in %v, want at least 1ms", d.ExpiresIn)
	}
	return v, nil
}

// parseValue reads what value wrote. Its errors do not show the content.
func parseValue(v []byte) (Document, error) {
	if len(v) > maxValue {
		return Document{}, fmt.Errorf("more than %d bytes", maxValue)
	}
	line, content, found := bytes.Cut(v, []byte("\n"))
	epoch, err := strconv.ParseUint(string(line), 10, 64)
	if !found || err != nil || epoch == 0 || line[0] == '0' || line[0] == '+' {
		return Document{}, fmt.Errorf("%d bytes that do not begin with a line with the epoch", len(v))
	}
	if len(content) == 0 {
		return Document{}, fmt.Errorf("nothing follows the epoch")
	}
	return Document{Content: content, Epoch: epoch}, nil
}
