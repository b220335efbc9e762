package delayserver

import (
	"errors"
	"fmt"
	"math/rand"
	"time"
)

// Names of errors of a server. A name that is not here is final.
const (
	MalformedFrame     = "malformed_frame"
	MalformedRequest   = "malformed_request"
	FrameTooLarge      = "frame_too_large"
	FrameTimeout       = "frame_timeout"
	UnknownOperation   = "unknown_operation"
	UnsupportedVersion = "unsupported_version"
	InvalidArgument    = "invalid_argument"
	BatchTooLarge      = "batch_too_large"
	MessageTooLarge    = "message_too_large"
	SubjectInvalid     = "subject_invalid"
	MessageIDInvalid   = "message_id_invalid"
	PropertiesInvalid  = "properties_invalid"
	TooFar             = "too_far"
	TooOld             = "too_old"
	ReceiptInvalid     = "receipt_invalid"
	ForeignReceipt     = "foreign_receipt"
	NotRouted          = "not_routed"
	SubjectsFull       = "subjects_full"
	TagsFull           = "tags_full"
	FilterInvalid      = "filter_invalid"
	GroupsFull         = "groups_full"
	TransactionUnknown = "transaction_unknown"
	TransactionEnded   = "transaction_ended"
	FilterInUse        = "filter_in_use"
	QueueFull          = "queue_full"
	TooManyConnections = "too_many_connections"
	NotReady           = "not_ready"
	ShuttingDown       = "shutting_down"
	DiskFull           = "disk_full"
	StorageFailed      = "storage_failed"
	MessageDamaged     = "message_damaged"
	DeadlinePassed     = "deadline_passed"
	GroupUnknown       = "group_unknown"
	OutOfRange         = "position_out_of_range"
	PolicyInvalid      = "policy_invalid"
	ConfigInvalid      = "config_invalid"
	PublishedElsewhere = "published_elsewhere"
	Unauthenticated    = "unauthenticated"
	Forbidden          = "forbidden"
	RateLimited        = "rate_limited"
	ServerNotProven    = "server_not_proven"
	Superseded         = "superseded"
	DuplicateServerID  = "duplicate_server_id"
	NotDue             = "not_due"
	InternalError      = "internal_error"
)

// again holds the names after which the same request can succeed over a new or the same connection.
var again = map[string]bool{
	FrameTimeout: true, FilterInUse: true, QueueFull: true, TooManyConnections: true, NotReady: true,
	ShuttingDown: true, DiskFull: true, StorageFailed: true, RateLimited: true, Superseded: true, DuplicateServerID: true, NotDue: true,
}

const (
	pauseFirst = 50 * time.Millisecond
	pauseMax   = 2 * time.Second
)

// Error is what a server answers in place of a result. A program decides by Name; Message is for people.
type Error struct {
	Name       string
	Message    string
	RetryAfter time.Duration // 0 where the server gave none
}

func (e *Error) Error() string { return e.Name + ": " + e.Message }

// Is reports whether target is an *Error of the same name, so errors.Is(err, &Error{Name: TooOld}) works.
func (e *Error) Is(target error) bool {
	other, ok := target.(*Error)
	return ok && other.Name == e.Name
}

// Again reports whether the same request, unchanged, can succeed later.
func (e *Error) Again() bool { return again[e.Name] }

// Pause is how long to wait before try number attempt (from 0) of the same request: RetryAfter and a random part.
func (e *Error) Pause(attempt int) time.Duration {
	bound := pauseFirst
	for ; attempt > 0 && bound < pauseMax; attempt-- {
		bound *= 2
	}
	if bound > pauseMax {
		bound = pauseMax
	}
	return e.RetryAfter + time.Duration(rand.Int63n(int64(bound)))
}

// NameOf is the name of the server's error in err, or "".
func NameOf(err error) string {
	var named *Error
	if errors.As(err, &named) {
		return named.Name
	}
	return ""
}

var (
	// ErrConnectionLost is in every error that a lost connection causes.
	ErrConnectionLost = errors.New("the connection is lost")
	// ErrClosed is in the errors of calls on a Client that was closed by its owner.
	ErrClosed = errors.New("the client is closed")
)

// NoReplyError says that a request has no reply: the connection was lost, or the caller's context ended.
type NoReplyError struct {
	Operation string
	MaybeDone bool  // the server may have carried the request out; false: it has not
	Cause     error // ErrConnectionLost with its reason, or the context's error
}

func (e *NoReplyError) Error() string {
	if e.MaybeDone {
		return fmt.Sprintf("%s has no reply and may have been done: %v", e.Operation, e.Cause)
	}
	return fmt.Sprintf("%s was not sent: %v", e.Operation, e.Cause)
}

func (e *NoReplyError) Unwrap() error { return e.Cause }

// lostError is ErrConnectionLost with its reason: of the network, of the server (id 0), or ErrClosed.
type lostError struct{ reason error }

func (e *lostError) Error() string        { return ErrConnectionLost.Error() + ": " + e.reason.Error() }
func (e *lostError) Is(target error) bool { return target == ErrConnectionLost }
func (e *lostError) Unwrap() error        { return e.reason }
