package delayserver

import (
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// Receipt names one accepted message: server id, due time and sequence. Store it as text.
type Receipt string

var receiptForm = regexp.MustCompile(`\A([0-9a-f]{12})-([0-9a-f]{12})-([0-9a-f]{12})\z`)

// NewReceipt makes the receipt of an accepted message.
func NewReceipt(serverID string, dueMs, sequence int64) Receipt {
	return Receipt(fmt.Sprintf("%s-%012x-%012x", serverID, dueMs, sequence))
}

// Parts are what a receipt is made of. A text that is no receipt is an error with the name ReceiptInvalid.
func (r Receipt) Parts() (serverID string, dueMs, sequence int64, err error) {
	parts := receiptForm.FindStringSubmatch(string(r))
	if parts == nil {
		return "", 0, 0, &Error{Name: ReceiptInvalid, Message: fmt.Sprintf("%q is no receipt", string(r))}
	}
	dueMs, _ = strconv.ParseInt(parts[2], 16, 64)
	sequence, _ = strconv.ParseInt(parts[3], 16, 64)
	return parts[1], dueMs, sequence, nil
}

// Due is the due time of the message, or the zero time of a text that is no receipt.
func (r Receipt) Due() time.Time {
	_, dueMs, _, err := r.Parts()
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(dueMs)
}

// DerivedID is the id of a message that was sent without one.
func DerivedID(serverID string, sequence int64) string {
	return fmt.Sprintf("%s-%012x", serverID, sequence)
}
